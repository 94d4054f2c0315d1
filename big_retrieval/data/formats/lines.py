"""Lines and JSON objects of files as tables; only the place of each in the file is in memory."""

import json
import mmap
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.json_files import JSON_LINES, parse_object
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.handles import RandomAccessFile

CHUNK = 16 * 2**20  # bytes that are searched for line ends together
BLOCK = 65536  # lines that are held at a time
TEXT = pa.large_string()  # ids and titles of a data set may exceed 2 GiB
HEADERS = ({"id", "text", "title"}, {"id", "text"}, {"pid", "text", "title"}, {"pid", "text"})
BOM = b"\xef\xbb\xbf"
BLANKS = re.compile(rb"[ \t\r\n,]*")  # between the objects of a list
MAX_OBJECT = 256 * 2**20  # bytes of an object in a list


class JsonArray(Table):
    """A JSON file that is one list of objects; 16 bytes of memory an object.

    Args:
      path: the file, UTF-8.

    Raises:
      UserError: it is no list of objects, or cut short.
    """

    def __init__(self, path: Path):
        self._path, self.name = path.absolute(), path.stem
        self._file = RandomAccessFile(self._path)
        self._spans = _spans(self._path)

    def __len__(self) -> int:
        return len(self._spans)

    def place(self, index: int) -> str:
        """The file and the number of the entry, from 1."""
        return f"{self._path}, entry {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """An object."""
        return json_object(self._file.read(*self._spans[index].tolist()), self.place(index))


class DelimitedLines(Table):
    """The cells of every line between tabs, under fixed names; 8 bytes of memory a line.

    A first line with the names of ids and texts is a header; cells of such a file may be in quotes,
    as DPR's passages are. Empty lines at the end do not count.

    Args:
      path: the file, UTF-8.
      names: of the cells of a file without a header line.
      min_cells: cells that a line has at least; None: as many as there are names.
    """

    def __init__(self, path: Path, names: Sequence[str], min_cells: int | None = None):
        self._path, self.name, self._names = path.absolute(), path.stem, tuple(names)
        self._min_cells = len(names) if min_cells is None else min_cells
        self._file = RandomAccessFile(self._path)
        self._starts = line_starts(self._path)
        while len(self._starts) > 1 and not self._line(len(self._starts) - 2).strip():
            self._starts = self._starts[:-1]
        first = self._line(0).lower().split("\t") if len(self._starts) > 1 else []
        self._first = int(set(first) in HEADERS)
        if self._first:
            self._names = tuple("id" if name == "pid" else name for name in first)
            self._min_cells = len(first)
        self.columns = frozenset(self._names)

    def __len__(self) -> int:
        return len(self._starts) - 1 - self._first

    def place(self, index: int) -> str:
        """The file and the number of the line, from 1."""
        return f"{self._path}, line {index + self._first + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The cells of a line; those at its end that it may lack are empty."""
        cells = self._line(index + self._first).split("\t")
        if not self._min_cells <= len(cells) <= len(self._names):
            wanted = "\\t".join(self._names)
            why = f"the line has {len(cells)} cells, not those of {wanted}"
            raise Damaged(self.place(index), why)
        cells = [self._plain(cell) for cell in cells]
        return dict(zip(self._names, [*cells, *[""] * len(self._names)], strict=False))

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The first cells of all lines, which are their ids; null where one is empty."""
        if name != self._names[0]:
            return None
        return pa.chunked_array([pa.array(block, TEXT) for block in self._first_cells()], TEXT)

    def _first_cells(self) -> Iterator[list[str | None]]:
        for start in range(self._first, len(self._starts) - 1, BLOCK):
            stop = min(start + BLOCK, len(self._starts) - 1)
            lines = self._file.read(*self._starts[[start, stop]].tolist()).split(b"\n")
            cells = [as_utf8(line.split(b"\t", 1)[0]).strip() for line in lines[: stop - start]]
            yield [self._plain(cell) or None for cell in cells]

    def _line(self, number: int) -> str:
        found = self._file.read(*self._starts[number : number + 2].tolist())
        line = as_utf8(found).rstrip("\r\n")
        return line.removeprefix("\ufeff") if number == 0 else line

    def _plain(self, cell: str) -> str:
        """A cell without the quotes that files with a header line may have around it."""
        quoted = self._first and len(cell) > 1 and cell[0] == cell[-1] == '"'
        return cell[1:-1].replace('""', '"') if quoted else cell


def json_form(path: Path) -> Table | Reader:
    """The objects of a file, or the reader of its store: one list of them, or one a line.

    Raises:
      UserError: a list that is not one of objects.
    """
    with path.open("rb") as file:
        start = file.read(1024).removeprefix(BOM).lstrip()
    return JsonArray(path) if start.startswith(b"[") else JSON_LINES


def json_object(content: bytes, place: str) -> Record:
    """The JSON object of some bytes of a file, UTF-8.

    Raises:
      Damaged: they are something else.
    """
    row, reason = parse_object(content)
    if reason is not None:
        raise Damaged(place, reason)
    return row


def line_starts(path: Path) -> np.ndarray:
    """Where every line starts, and the file's end: int64 [n + 1]."""
    found, at = [np.zeros(1, np.int64)], 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.append(at + np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + 1)
            at += len(chunk)
    starts = np.concatenate(found)
    return starts if starts[-1] == at else np.append(starts, at)


def _spans(path: Path) -> np.ndarray:
    """Start and end of every object of the list: int64 [n, 2].

    The file is looked at as Latin-1, of which each character is a byte, in windows: the decoder
    tells where an object ends. One that the window cuts is decoded again in a window of its own.

    Raises:
      UserError: something else than objects stands in the list or behind it, or its end is missing.
    """
    spans, decode = array("q"), json.JSONDecoder(strict=False).raw_decode
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = _next(content, content.find(b"[") + 1)
        start, size, text = 0, CHUNK, ""
        while content[at : at + 1] == b"{":
            try:
                end = start + decode(text, at - start)[1]
            except (ValueError, RecursionError) as problem:
                if start == at and (start + size >= len(content) or size > MAX_OBJECT):
                    what = "is cut short or holds no JSON"
                    raise UserError(f"{path} {what}: see its byte {at:,} ({problem}).") from None
                size = 2 * size if start == at else CHUNK
                start, text = at, content[at : at + size].decode("latin-1")
                continue
            spans.extend((at, end))
            at = _next(content, end)
        if at == len(content):
            raise UserError(f"{path} is cut short.")
        if content[at : at + 1] != b"]" or _next(content, at + 1) < len(content):
            raise UserError(f"{path} is no list of objects: see its byte {at:,}.")
    return np.array(spans, np.int64).reshape(-1, 2)


def _next(content: mmap.mmap, place: int) -> int:
    """The first byte from a place on that is no blank between objects."""
    found = BLANKS.match(content, place)
    return place if found is None else found.end()
