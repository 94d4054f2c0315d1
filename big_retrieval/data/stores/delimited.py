"""Reader of CSV and TSV files with a header line.

A cell that begins with a quote ends with a quote, before a delimiter or a line end. If a record
breaks this rule, or has another number of cells than the header, its first line is a damaged row.
Reading continues with the next line, so an unclosed quote damages one row.
"""

import codecs
import csv
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

from big_retrieval.data.stores.blocks import FileRow, Reader, in_blocks
from big_retrieval.errors import UserError

CHUNK = 2**24
LARGEST_RECORD = 2**24  # characters
OTHER_DELIMITERS = (";", "\t", "|")  # of CSV files
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MOST_REREAD = 2**31  # characters that are read again after unclosed quotes

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL or csv.QUOTE_NONE (quotes are plain characters)


def delimited(delimiter: str) -> Reader:
    """Returns the reader of files with a delimiter between cells."""
    return Reader(read_delimited, "line", options={"delimiter": delimiter})


@in_blocks
def read_delimited(path: Path, delimiter: str, lower: bool = False) -> Iterator[FileRow | str]:
    """Yields the rows of a file with a header line; all values are str.

    The file is UTF-8, UTF-16 with a byte order mark, or Windows-1252. If the header of a CSV file
    has no comma, semicolons, tabs or bars may separate cells. Empty lines are skipped. If a TSV
    file breaks the rule of quotes (see the module), quotes are plain characters.

    Args:
      lower: converts the column names to lower case, without spaces around them.
    """
    notes, header = list[str](), None
    encoding = encoding_of(path, notes)
    delimiter = _delimiter_of(path, encoding, delimiter, notes)
    quoting: Quoting = csv.QUOTE_MINIMAL
    if delimiter == "\t" and not _quotes_fit(path, encoding):
        notes.append(f"{path}: quotes are letters, as some of its cells have only one")
        quoting = csv.QUOTE_NONE
    yield from notes
    with path.open(encoding=encoding, newline="", errors="replace") as file:
        for line_number, size, cells, reason in _records(file, delimiter, quoting):
            if header is None:
                if reason is not None:
                    raise UserError(f"{path}: its header cannot be read, {reason}.")
                cells = [cell.strip().lower() for cell in cells] if lower else cells
                header = checked_header(cells, path)
                continue
            if reason is None and len(cells) != len(header):
                reason = f"{len(cells)} cells, but the header has {len(header)}"
            yield {} if reason else _row(header, cells), line_number, reason, size


def _delimiter_of(path: Path, encoding: str, delimiter: str, notes: list[str]) -> str:
    """Returns the delimiter; for CSV without a comma in the header, the most frequent other one."""
    with path.open(encoding=encoding, newline="", errors="replace") as file:
        header = file.readline(LARGEST_RECORD)
    other = max(OTHER_DELIMITERS, key=header.count)
    if delimiter != "," or "," in header or other not in header:
        return delimiter
    notes.append(f"{path}: cells are separated by {other!r}, as its header has no comma")
    return other


def encoding_of(path: Path, notes: list[str]) -> str:
    """Returns the encoding of a text file (utf-8-sig, utf-16 or cp1252); adds a note if unusual.

    If valid non-ASCII letters precede the first invalid byte, the file is UTF-8 with damaged bytes.
    """
    decoder, is_ascii, valid_bytes = codecs.getincrementaldecoder("utf-8")(), True, 0
    with path.open("rb") as file:
        if file.read(2) in UTF16_MARKS:
            return "utf-16"
        file.seek(0)
        try:
            while chunk := file.read(CHUNK):
                is_ascii &= decoder.decode(chunk).isascii()
                valid_bytes += len(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            if is_ascii and error.object[: error.start].isascii():
                notes.append(f"{path} is not UTF-8; it is read as Windows-1252")
                return "cp1252"
            notes.append(f"{path} has invalid UTF-8 after byte {valid_bytes:,}: read as U+FFFD")
    return "utf-8-sig"


class RecordTooLong(Exception):
    """A record does not end within `LARGEST_RECORD` characters."""


class _Lines:
    """Lines of a file; the lines of the current record can be read again."""

    def __init__(self, file: IO[str]):
        self._file, self._returned = file, deque[str]()
        self.taken: list[str] = []
        self.number = 0  # lines before the current record
        self.reread = self._size = 0  # characters

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._returned.popleft() if self._returned else next(self._file)
        self.taken.append(line)
        self._size += len(line)
        if self._size > LARGEST_RECORD:
            raise RecordTooLong(f"the record is longer than {LARGEST_RECORD:,} characters")
        return line

    def keep(self, count: int) -> int:
        """Ends the record after its first `count` lines; returns their number of characters."""
        size = sum(map(len, self.taken[:count]))
        self._returned.extendleft(reversed(self.taken[count:]))
        self.reread += self._size - size
        self.number += count
        self.taken, self._size = [], 0
        return size


def _records(
    file: IO[str], delimiter: str, quoting: Quoting
) -> Iterator[tuple[int, int, Sequence[str], str | None]]:
    """Yields the number of the first line, size, cells and, for a damaged record, the reason."""
    lines, width = _Lines(file), 0
    csv.field_size_limit(2**31 - 1)  # for the whole process; `LARGEST_RECORD` is the limit
    while True:
        records = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        reason = None
        try:
            for cells in records:
                line_number, count = lines.number + 1, len(lines.taken)
                # Several lines with another number of cells: the record began with a stray quote.
                if count > 1 and width and len(cells) != width:
                    reason = f"a quote in it is not closed: {len(cells)} cells instead of {width}"
                    break
                width = width or len(cells)
                size = lines.keep(count)
                if cells:
                    yield line_number, size, cells, None
            else:
                return
        except RecordTooLong as error:
            reason = str(error)
        except csv.Error as error:
            reason = f"a quote in it is not closed ({error})"
        line_number = lines.number + 1
        yield line_number, lines.keep(1), (), reason
        if lines.reread > MOST_REREAD:
            raise UserError(
                f"{file.name}, line {line_number}: too many quotes up to here are not closed; "
                "write the file again with a CSV library."
            )


def _row(header: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Returns cells by name; for several columns without a name, the cell of the first."""
    row = dict(zip(header, cells, strict=True))
    return row if len(row) == len(header) else {x: cells[header.index(x)] for x in header}


def _quotes_fit(path: Path, encoding: str) -> bool:
    """Returns True if all quotes of a TSV file follow the rule, or if it has no quotes."""
    with path.open(encoding=encoding, newline="", errors="replace") as file:
        if not any('"' in line for line in file):
            return True
        file.seek(0)
        rows = _records(file, "\t", csv.QUOTE_MINIMAL)
        return all(reason is None for _, _, _, reason in rows)


def checked_header(names: Sequence[str], path: Path) -> Sequence[str]:
    """Returns the names of a header; raises a UserError if two columns have the same name."""
    twice = next((name for name in names if name.strip() and names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"{path} has {names.count(twice)} columns {twice!r} in its header; rename or remove "
            "all but one."
        )
    return names
