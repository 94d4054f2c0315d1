"""Builds one index with several processes. Each process encodes a part of the documents.

    indexes/big.parts/2-of-4/    index of the second quarter of the documents
    indexes/big/                 index of all documents, after all four parts

The processes share only the folder, and do not wait for each other. After a process was killed,
the same command builds its part again. The process that finishes the last part joins all parts.
The joined index has the bytes of an index by one process: parts begin at blocks of records that
are encoded together, and documents keep their order.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from big_retrieval.data.stores.store import Store
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import MANIFEST
from big_retrieval.retrieval import build_index, dense, inverted, vocabulary
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import StoredTexts
from big_retrieval.retrieval.folder import DENSE, ORIGIN
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.retrieval.index_work import origin, prepare
from big_retrieval.runtime import atomic_folder
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
DIFFERENCES = {"model": "another model or checkpoint", "documents": "other documents"}


@dataclass(frozen=True)
class IndexPart:
    """A part of an index."""

    number: int  # from 1
    count: int  # number of parts

    @classmethod
    def parse(cls, text: str) -> "IndexPart":
        """Parses the value of --part, such as 2/4; raises a UserError for another form."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        part = cls(*map(int, match.groups())) if match else None
        if part is None or not 1 <= part.number <= part.count:
            raise UserError(f"--part is {text!r}. Use a form like 2/4, from 1/4 to 4/4.")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def all(self) -> list["IndexPart"]:
        """Returns all parts of the index."""
        return [IndexPart(number, self.count) for number in range(1, self.count + 1)]

    def folder(self, out: Path) -> Path:
        """Returns the folder of this part of an index."""
        target = out.resolve()  # a link to an empty folder stays a link
        return target.with_name(f"{target.name}.parts") / f"{self.number}-of-{self.count}"

    def span(self, records: int, size: int) -> range:
        """Returns the part's record indices, whole blocks of `size` records."""
        blocks = -(-records // size)
        if blocks < self.count:
            raise UserError(
                f"--part={self}: {count_of(records, 'document')}, encoded {size:,} at a time, "
                f"allow at most {count_of(blocks, 'part')}."
            )
        start, stop = (x * blocks // self.count * size for x in (self.number - 1, self.number))
        return range(start, min(stop, records))


def make_part(options: IndexOptions, part: IndexPart) -> list[IndexPart]:
    """Encodes and writes a part of an index, unless it exists.

    Returns the missing parts; no parts if none is missing, or if all have been joined. Raises a
    UserError if an existing part has another model, other documents or other flags.
    """
    if options.format != "index":
        raise UserError(
            f"--format={options.format} is written by one process. Remove --part, or give each "
            "process its own --data and --out."
        )
    work = prepare(options)
    made_from = origin(work)
    if folders.made_from(options.out) == made_from:
        log.info(f"all parts of {options.out} have been joined already")
        return []
    atomic_folder.check_free(options.out)
    work = replace(work, span=part.span(len(work.records), work.block))
    target = part.folder(options.out)
    _check_others(target.parent, part, made_from)
    if _is_complete(target):
        log.info(f"part {part} exists already")
    else:
        about = build_index.write_index_or_export(work, target)
        count = count_of(about.documents if about else 0, "document")
        log.info(f"part {part}: {count} in {target}")
    # Listed after the rename: if two processes finish together, at least one sees all parts.
    missing = [x for x in part.all() if not x.folder(options.out).is_dir()]
    return [] if folders.made_from(options.out) == made_from else missing


def join_parts(options: IndexOptions, part: IndexPart) -> None:
    """Joins all parts, if they are not joined yet, and removes them; `part` is any part.

    Raises a UserError if a part is missing, damaged or different, or if two documents have the same
    id.
    """
    paths = {x: x.folder(options.out) for x in part.all()}
    made_from = folders.made_from(options.out)
    if made_from is None or any(
        folders.made_from(path) not in (None, made_from) for path in paths.values()
    ):
        log.info(f"joining {part.count} parts")
        _join_folders(paths, options)
    for path in paths.values():
        durable.remove(path)
    with contextlib.suppress(OSError):  # not empty: locks, or a user's files
        paths[part].parent.rmdir()


def _join_folders(paths: Mapping[IndexPart, Path], options: IndexOptions) -> None:
    parts = []
    for part, path in paths.items():
        try:
            parts.append((path, folders.open_folder(path, verify=True)))
        except UserError as error:
            raise UserError(f"{error} Add --part={part}.") from None
    first, about = parts[0]
    for path, _ in parts:
        _check_origin(path, folders.made_from(first) or {})
    with folders.begin_safely(options.out) as partial:
        for name in (ORIGIN, vocabulary.FILE, vocabulary.TOKENIZER):
            if (first / name).is_file():
                shutil.copyfile(first / name, partial / name)
        with StoreWriter(partial, "document") as store:
            for path, _ in parts:
                rows = Store(path)
                store.append(map(rows.row, range(len(rows))))
        if about.kind == DENSE:
            about = dense.join_parts(partial, [path for path, _ in parts], about)
        else:
            about = inverted.join_parts(partial, parts, memory=int(options.memory * 2**20))
        build_index.check_ids(StoredTexts(Store(partial), "id"))
    folders.finish(partial, options.out, about)
    build_index.log_index(options.out, about)


def _is_complete(path: Path) -> bool:
    """Returns True if a part exists and is intact; removes a damaged one."""
    if not path.is_dir():
        return False
    try:
        folders.open_folder(path, verify=True)
    except UserError as error:
        if (path / MANIFEST).is_file():
            log.warning(f"building the part again: {error}")
            durable.remove(path)
        return False
    return True


def _check_others(folder: Path, part: IndexPart, made_from: Mapping[str, Any]) -> None:
    """Raises a UserError if a folder has parts of another split, or of another index."""
    for path in sorted(folder.glob("*-of-*")):
        match = re.fullmatch(r"\d+-of-(\d+)", path.name)
        if match and int(match[1]) != part.count:
            raise UserError(
                f"{path} is one of {match[1]} parts, but --part is {part}. Use {match[1]} parts, "
                f"or remove {folder} to start again."
            )
        if match:
            _check_origin(path, made_from)


def _check_origin(path: Path, made_from: Mapping[str, Any]) -> None:
    """Raises a UserError if a part was built from something else."""
    saved = folders.made_from(path)
    changed = [key for key in made_from if saved is not None and saved.get(key) != made_from[key]]
    if changed:
        names = ", ".join(DIFFERENCES.get(key, f"another --{key}") for key in changed)
        raise UserError(
            f"{path} was built with {names}. Use the same for all parts, or remove {path.parent} "
            "to start again."
        )
