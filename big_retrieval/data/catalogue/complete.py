"""Compares a folder with what the catalogue says of a complete one."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.data.catalogue.entries import DataSet, Expected
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import JSON_LIST, json_reader
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular

CHUNK = 1 << 24  # bytes read at once


@dataclass(frozen=True)
class Found:
    """What became of a part.

    Attributes:
      part: the part.
      said: what is there.
      wrong: what is missing or differs; "": nothing.
    """

    part: Expected
    said: str
    wrong: str = ""


def compare(found: DataSet, folder: Path) -> Iterator[Found]:
    """Compares the parts of a folder, one after the other; large files take their time.

    Args:
      found: what a complete folder holds.
      folder: the folder.

    Raises:
      UserError: the folder does not exist.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give that of the data set as --data=FOLDER.")
    for part in found.parts:
        files = sorted(folder.glob(part.path))
        if not files:
            yield Found(part, "none", "" if part.optional else "missing")
            continue
        yield _found(part, files)


def _found(part: Expected, files: list[Path]) -> Found:
    """A part of which there are files."""
    counts: list[tuple[int, int | None, str]] = [(len(files), part.files, "files")]
    first = files[0]
    check_regular(first, folders=True)
    if part.lines is not None:
        counts.append((_lines(first), part.lines, "lines"))
    if part.records is not None:
        counts.append((_records(first), part.records, "records"))
    if part.queries is not None:
        counts.append((_queries(first), part.queries, "judged queries"))
    wrong = [
        f"{count:,} of {wanted:,} {what}"
        for count, wanted, what in counts
        if wanted is not None and count != wanted
    ]
    if part.beside:
        lone = [each.name for each in files if not _beside(each, part.beside).is_file()]
        if lone:
            wrong.append(f"{len(lone):,} are not finished, the first one is {lone[0]}")
    if part.md5 and _md5(first) != part.md5:
        wrong.append(f"its MD5 is not {part.md5}: fetch it again")
    shown = [f"{count:,} {what}" for count, _, what in counts if what != "files" or count > 1]
    return Found(part, ", ".join(shown) or "there", "; ".join(wrong))


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.stem + ending)


def _lines(path: Path) -> int:
    """Lines of a file; the last one need not end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def _records(path: Path) -> int:
    """Objects of a JSON file: of its list, or of the list `images` of its object."""
    if json_reader(path) is JSON_LIST:
        return len(open_store([path], JSON_LIST))
    try:
        return len(json.loads(path.read_bytes())["images"])
    except (ValueError, KeyError, TypeError):
        return 0


def _queries(path: Path) -> int:
    """Different values of the first column, below the header line."""
    with path.open(encoding="utf-8") as file:
        next(file, None)
        return len({line.partition("\t")[0] for line in file if line.strip()})


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
