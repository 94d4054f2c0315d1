"""Tables as people bring them: other separators, other encodings, no header line, JSON lists."""

import contextlib
import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.folders import IMAGES
from big_retrieval.data.formats.lines import json_form
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.stores.delimited import checked_header
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_bytes, read_gzip

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST = 2 * 2**30  # bytes of a table that has to be rewritten
JSON = (".jsonl", ".ndjson", ".json")
DELIMITED = (".csv", ".tsv", ".txt", ".token")  # the last two: captions of Flickr's data sets
CALLED = "columns are called column_1 and so on"
HEADER_WORDS = 12  # of a column's name at most; a cell of more is a record's
NUMBERED = re.compile(r"#\d+$")  # behind a picture's name, in cat.jpg#0: the caption's number


def ending_of(file: Path) -> str:
    """The ending that tells how a file is read: of table.csv.gz that is .csv."""
    ending, inner = file.suffix.lower(), file.with_suffix("").suffix.lower()
    return inner if ending == ".gz" and inner in (*JSON, ".csv", ".tsv") else ending


def read_delimited(path: Path, notes: list[str]) -> Table:
    """The rows of a file. One that a source does not read as it is gets a note: it is rewritten.

    Args:
      path: a table or a tar.
      notes: gets a sentence about what is unusual, or "" where nothing is.

    Raises:
      UserError: the file cannot be read.
    """
    ending, packed = ending_of(path), path.suffix.lower() == ".gz"
    if ending == ".tar":
        return file_table(path)
    if ending in JSON and not packed and not _has_lists(path):
        notes += [""] if ending == ".json" else []
        return file_table(path, json_form if ending == ".json" else None)
    if ending not in (*JSON, *DELIMITED):
        return file_table(path)
    text, encoding = decoded(path)
    usual = "," if ending == ".csv" else "\t"
    separator = separator_of(text, usual)
    plain = ending in (".csv", ".tsv") and not packed and (encoding, separator) == ("UTF-8", usual)
    if plain and not (_has_no_header(text, separator) or _has_windows_paths(text, separator)):
        with contextlib.suppress(UserError):  # ragged rows, which the lines below count
            return file_table(path)
    if ending in JSON:
        rows, unusual = _of_json(text, path)
    else:
        rows, unusual = _of_lines(text, separator, path)
        unusual = [f"separated by {SEPARATORS[separator]}"] * (separator != usual) + unusual
    if not rows:
        raise UserError(f"{path} has no rows; give a file with at least one record.")
    unusual = ([f"read as {encoding}"] if encoding != "UTF-8" else []) + unusual
    notes.append(f"{path.name}: {', '.join(unusual)}" if unusual else "")
    return Rows(rows, path.stem)


def _has_lists(path: Path) -> bool:
    """Whether a JSON file is of lists of texts, one a line or all in one."""
    with path.open("rb") as file:
        return re.match(rb'(\xef\xbb\xbf)?\s*\[\s*["\[]', file.read(1024)) is not None


def _of_json(text: str, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of JSON objects or lists, by lines or as a whole, and what is unusual."""
    try:
        whole = json.loads(text) if text.lstrip().startswith(("[[", "[{")) else None
        found = whole or [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not JSON, as a whole or by lines ({problem}).") from None
    rows = [_row(each) if isinstance(each, list) else each for each in found]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} holds neither objects with keys nor lists of texts.")
    return rows, [f"lists; {CALLED}"] if rows and isinstance(found[0], list) else []


def _row(cells: Sequence[Any]) -> dict[str, Any]:
    return {f"column_{number}": cell for number, cell in enumerate(cells, 1)}


def decoded(path: Path) -> tuple[str, str]:
    """The text of a file and the name of its encoding: UTF-8, UTF-16 or Windows-1252.

    Raises:
      UserError: the file cannot be unpacked, or is too large.
    """
    read = read_gzip if path.suffix.lower() == ".gz" else read_bytes
    data = read(path, MOST)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), "UTF-16"
    try:
        return data.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "Windows-1252"


def separator_of(text: str, usual: str) -> str:
    """What stands between the cells of the first lines.

    `usual` wins where it stands in the first line, unless another sign there divides all lines into
    as many cells, and into more than it does: of semicolons, a header may have a comma in a name.
    """
    text = text[: 2**16]
    line = text.split("\n", 1)[0]
    counts = {each: line.count(each) for each in SEPARATORS}
    if not counts[usual]:
        return max(counts, key=lambda each: (counts[each], each == usual))
    widths = {each: _width(text, each) for each, count in counts.items() if count}
    best = max(widths, key=lambda each: (widths[each], each == usual))
    return usual if widths[usual] and _has_no_header(text, usual) else best


def _width(text: str, separator: str) -> int:
    """The number of cells that all lines have; 0: it is not the same, or there is one line."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        return 0
    widths = {len(line) for line in lines[: max(2, len(lines) - 1)] if line}  # the last may be cut
    return widths.pop() if len(widths) == 1 and len(lines) > 1 else 0


def is_caption_file(path: Path) -> bool:
    """Whether a text file is a table of pictures with captions, as captions.txt of Flickr8k is."""
    with path.open("rb") as file:
        text = file.read(4096).decode("utf-8", "replace")
    lines = text.split("\n")[1:-1]
    separator = separator_of(text, "\t")
    cells = [[_names_image(cell) for cell in line.split(separator)] for line in lines]
    return bool(cells) and all(any(line) and len(line) > 1 for line in cells)


def _names_image(cell: str) -> bool:
    """Whether a cell is the path of a picture, perhaps with the number of a caption (cat.jpg#0)."""
    return len(cell) < 4096 and NUMBERED.sub("", cell.strip()).lower().endswith(IMAGES)


def _cells(text: str, separator: str, line: int) -> list[str]:
    """The cells of a line near the beginning."""
    lines = text[: 2**16].split("\n", line + 1)
    return next(csv.reader(lines[line : line + 1], delimiter=separator), [])


def _has_no_header(text: str, separator: str) -> bool:
    """Whether the first line is a record: a picture's file, an address, a number or a long text."""
    return any(
        _names_image(cell)
        or "://" in cell
        or len(cell.split()) > HEADER_WORDS
        or cell.strip().isdecimal()
        for cell in _cells(text, separator, 0)
    )


def _has_windows_paths(text: str, separator: str) -> bool:
    return any("\\" in cell and _names_image(cell) for cell in _cells(text, separator, 1))


def _of_lines(text: str, separator: str, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of separated cells, as texts, and what is unusual about them."""
    csv.field_size_limit(2**31 - 1)
    headless, windows = _has_no_header(text, separator), _has_windows_paths(text, separator)
    # Without a header line, nobody thought of quotes: those in tab-separated texts are texts.
    quoting = csv.QUOTE_NONE if headless and separator == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    lines = [[_cell(cell, windows) for cell in line] for line in reader if line]
    names = (list(_row(lines[0])) if headless else lines.pop(0)) if lines else []
    checked_header(names, path)
    rows = [dict(zip(names, line, strict=True)) for line in lines if len(line) == len(names)]
    odd = len(lines) - len(rows)
    unusual = [f"without a header line; {CALLED}"] if headless else []
    unusual += ["\\ in paths is read as /"] if windows else []
    unusual += [f"{odd:,} rows have another number of cells and are left out"] if odd else []
    return rows, unusual


def _cell(cell: str, windows: bool) -> str:
    """A cell without blanks around it; of a picture's file with the separators of this system."""
    cell = cell.strip()
    if not _names_image(cell):
        return cell
    cell = NUMBERED.sub("", cell)
    return cell.replace("\\", "/") if windows else cell
