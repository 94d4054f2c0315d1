"""An index that several processes build: each encodes a part of the documents.

    indexes/big.parts/2-of-4/    an index of the second quarter of the documents
    indexes/big/                 the index of all documents, once all four parts are there

The processes share nothing but the folder: no process waits for another one, and a part whose
process was killed is made again by the same command. The process that finishes the last part joins
all parts. The joined index is byte for byte what one process writes: parts begin where one process
begins to encode a block of records, and documents keep their order.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from big_retrieval.data.stores.store import INFO, Store
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import MANIFEST
from big_retrieval.retrieval import dense, inverted, making, vocabulary
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import StoredTexts, TextsWriter
from big_retrieval.retrieval.folder import DENSE, ORIGIN, About
from big_retrieval.retrieval.preparing import IndexOptions, block, origin, prepare
from big_retrieval.runtime import building

log = logging.getLogger(__name__)
WHAT = {"model": "another model or checkpoint", "documents": "other documents"}


@dataclass(frozen=True)
class IndexPart:
    """A part of an index.

    Attributes:
      number: from 1 on.
      of: how many parts there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "IndexPart":
        """The part that --part names.

        Raises:
          UserError: it names none.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        part = cls(*map(int, found.groups())) if found else None
        if part is None or not 1 <= part.number <= part.of:
            raise UserError(f"--part is {text!r}; it is a number of a part, such as 2/4: 1 to 4.")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def all(self) -> list["IndexPart"]:
        """All parts of the index."""
        return [IndexPart(number, self.of) for number in range(1, self.of + 1)]

    def folder(self, out: Path) -> Path:
        """Where the part of an index is built and stays until all parts are joined."""
        target = out.resolve()  # a link to an empty folder stays a link
        return target.with_name(f"{target.name}.parts") / f"{self.number}-of-{self.of}"

    def span(self, records: int, size: int) -> range:
        """The numbers of the part's records.

        Args:
          records: how many there are.
          size: of the blocks in which records are encoded; a part has whole ones.

        Raises:
          UserError: there are more parts than blocks.
        """
        blocks = -(-records // size)
        if blocks < self.of:
            raise UserError(
                f"--part={self}: {records:,} documents are encoded {size:,} at a time and can be "
                f"cut into {blocks:,} parts at most."
            )
        start, stop = (
            (number * blocks // self.of) * size for number in (self.number - 1, self.number)
        )
        return range(start, min(stop, records))


def make_part(options: IndexOptions, part: IndexPart) -> list[IndexPart]:
    """Encodes and writes a part, unless it is there.

    Args:
      options: of the whole index.
      part: which one.

    Returns:
      The parts that are not there yet; [] where all are, or where they have been joined already.

    Raises:
      UserError: what `making.make` raises; a format other than "index"; or a part, made before, of
        another model, of other documents or with other flags.
    """
    if options.format != "index":
        raise UserError(
            f"--format={options.format} is written by one process: leave --part out, or give each "
            "process files (--data) and a folder (--out) of its own."
        )
    work = prepare(options)
    made_from = origin(work)
    if folders.made_from(options.out) == made_from:
        log.info(f"all parts of {options.out} have been joined already")
        return []
    building.check_free(options.out)
    work = replace(work, span=part.span(len(work.records), block(work)))
    own = part.folder(options.out)
    _check_others(own.parent, part, made_from)
    if _is_whole(own):
        log.info(f"part {part} is there already")
    else:
        about = making.write(work, own)
        log.info(f"part {part}: {about.documents if about else 0:,} documents in {own}")
    # After this process's own part has its name: of two that finish at the same time, the second
    # one finds the part of the first.
    missing = [each for each in part.all() if not each.folder(options.out).is_dir()]
    return [] if folders.made_from(options.out) == made_from else missing


def join(options: IndexOptions, part: IndexPart) -> None:
    """Makes one index of all parts and removes the parts, unless that has been done.

    Args:
      options: of the whole index.
      part: any of the parts.

    Raises:
      UserError: a part is missing or damaged, the parts are of different models, documents or
        flags, or two documents have the same id.
    """
    paths = {each: each.folder(options.out) for each in part.all()}
    made_from = folders.made_from(options.out)
    if made_from is None or any(
        folders.made_from(path) not in (None, made_from) for path in paths.values()
    ):
        log.info(f"joining {part.of} parts")
        _join(paths, options)
    for path in paths.values():
        durable.remove(path)
    with contextlib.suppress(OSError):  # there are locks, or what is not ours
        paths[part].parent.rmdir()


def _join(paths: Mapping[IndexPart, Path], options: IndexOptions) -> None:
    """Writes the whole index."""
    out = options.out
    parts = [(path, _open(part, path)) for part, path in paths.items()]
    first, about = parts[0]
    for path, _ in parts:
        _check_origin(path, folders.made_from(first) or {})
    partial = folders.begin(out)
    try:
        for name in (ORIGIN, vocabulary.FILE, vocabulary.TOKENIZER):
            if (first / name).is_file():
                shutil.copyfile(first / name, partial / name)
        for name in ("ids", "texts"):
            with TextsWriter(partial, name) as writer:
                for path, _ in parts:
                    writer.extend(StoredTexts(path, name))
        if (first / INFO).is_file():
            with StoreWriter(partial, "document") as store:
                for path, _ in parts:
                    own = Store(path)
                    store.append(map(own.row, range(len(own))))
        if about.kind == DENSE:
            about = dense.join(partial, [path for path, _ in parts], about)
        else:
            about = inverted.join(partial, parts, memory=options.memory)
        ids = StoredTexts(partial, "ids")
        making.check_ids(ids, making.hashes_of(ids))
    except BaseException:
        shutil.rmtree(partial)
        raise
    folders.finish(partial, out, about)
    making.tell(out, about)


def _open(part: IndexPart, path: Path) -> About:
    """What a part is, all its checksums verified.

    Raises:
      UserError: it is missing or damaged.
    """
    try:
        return folders.open_folder(path, verify=True)
    except UserError as problem:
        raise UserError(f"{str(problem).rstrip('.')}; make it by --part={part}.") from None


def _is_whole(path: Path) -> bool:
    """Whether a part is there and intact; a damaged one is removed."""
    if not path.is_dir():
        return False
    try:
        folders.open_folder(path, verify=True)
    except UserError as problem:
        if (path / MANIFEST).is_file():
            log.warning(f"made again: {problem}")
            durable.remove(path)
        return False
    return True


def _check_others(folder: Path, part: IndexPart, made_from: Mapping[str, Any]) -> None:
    """Raises a UserError where a folder has parts of another number, or from something else."""
    for path in sorted(folder.glob("*-of-*")):
        found = re.fullmatch(r"\d+-of-(\d+)", path.name)
        if found and int(found[1]) != part.of:
            raise UserError(
                f"{path} is one of {found[1]} parts, and --part is {part}: cut the documents into "
                f"as many parts, or remove {folder} to begin anew."
            )
        if found:
            _check_origin(path, made_from)


def _check_origin(path: Path, made_from: Mapping[str, Any]) -> None:
    """Raises a UserError where a part was made from something else."""
    found = folders.made_from(path)
    other = [key for key in made_from if found is not None and found.get(key) != made_from[key]]
    if other:
        what = ", ".join(WHAT.get(key, f"another --{key}") for key in other)
        raise UserError(
            f"{path} was made with {what}: give all parts the same, or remove {path.parent} to "
            "begin anew."
        )
