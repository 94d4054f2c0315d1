"""Tables as people bring them: other separators, other encodings, no header line, JSON lists."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.lines import json_table
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.formats.tar import TarShard
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_bytes

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST = 2 * 2**30  # bytes of a table that has to be rewritten
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".avif")


def read_delimited(path: Path, notes: list[str]) -> Table:
    """The rows of a file. One that a source does not read as it is gets a note: it is rewritten.

    Args:
      path: a table or a tar.
      notes: gets a sentence about what is unusual, or "" for a JSON list.

    Raises:
      UserError: the file cannot be read.
    """
    ending = path.suffix.lower()
    if ending == ".tar":
        return TarShard(path)
    if ending == ".json":
        table = json_table(path)
        notes.append("")
        return table
    if ending not in (".csv", ".tsv"):
        return file_table(path)
    text, encoding = decoded(path)
    usual = "," if ending == ".csv" else "\t"
    separator = separator_of(text, usual)
    headless = _has_no_header(text, separator, path.parent)
    if (encoding, separator, headless) == ("UTF-8", usual, False):
        try:
            return file_table(path)
        except UserError:
            pass  # ragged rows, which the lines below count
    rows, odd = _rows(text, separator, headless)
    if not rows:
        raise UserError(f"{path} has no rows; give a file with at least one record.")
    unusual = [f"read as {encoding}"] if encoding != "UTF-8" else []
    unusual += [f"separated by {SEPARATORS[separator]}"] if separator != usual else []
    unusual += ["without a header line: columns are called column_1 and so on"] if headless else []
    unusual += [f"{odd:,} rows have another number of cells and are left out"] if odd else []
    notes.append(f"{path.name}: {', '.join(unusual)}")
    return Rows(rows, path.stem)


def decoded(path: Path) -> tuple[str, str]:
    """The text of a file and the name of its encoding: UTF-8, UTF-16 or Windows-1252."""
    data = read_bytes(path, MOST)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), "UTF-16"
    try:
        return data.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "Windows-1252"


def separator_of(text: str, usual: str) -> str:
    """What stands between the cells of the first line; `usual` wins where it stands there."""
    line = text[: 2**16].split("\n", 1)[0]
    counts = {each: line.count(each) for each in SEPARATORS}
    return usual if counts[usual] else max(counts, key=lambda each: (counts[each], each == usual))


def _has_no_header(text: str, separator: str, folder: Path) -> bool:
    """Whether a cell of the first line is a picture's file, as only a record's is."""
    cells = next(csv.reader([text[: 2**16].split("\n", 1)[0]], delimiter=separator), [])
    return any(
        cell.lower().endswith(IMAGE_ENDINGS) and (folder / cell.strip()).is_file()
        for cell in cells
        if len(cell) < 4096
    )


def _rows(text: str, separator: str, headless: bool) -> tuple[list[dict[str, Any]], int]:
    """The rows as dicts of texts, and how many others there are."""
    csv.field_size_limit(2**31 - 1)
    lines = [
        line for line in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if line
    ]
    if not lines:
        return [], 0
    names: Sequence[str] = [cell.strip() for cell in lines[0]]
    if headless:
        names = [f"column_{number + 1}" for number in range(len(lines[0]))]
    whole = [line for line in lines[0 if headless else 1 :] if len(line) == len(names)]
    rows = [dict(zip(names, line, strict=True)) for line in whole]
    return rows, len(lines) - (not headless) - len(rows)
