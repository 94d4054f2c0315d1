"""Tab-separated files of millions of lines, as tables; only the place of each line is in memory."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import TEXT
from big_retrieval.data.formats.plain import RandomAccessFile
from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.errors import Damaged

CHUNK = 16 * 2**20  # bytes that are looked at together
BLOCK = 65536  # lines that are held at a time
HEADERS = ({"id", "text", "title"}, {"id", "text"}, {"pid", "text", "title"}, {"pid", "text"})


class DelimitedLines:
    """The cells of every line under fixed names; 8 bytes of memory a line.

    A first line with the names of ids and texts is a header; cells of such a file may be in quotes,
    as DPR's passages are. Empty lines at the end do not count.

    Args:
      path: the file, UTF-8.
      names: of the cells of a file without a header line.
      least: cells that a line may have at least; None: as many as there are names.
    """

    def __init__(self, path: Path, names: Sequence[str], least: int | None = None):
        self._path, self.name, self._names = path.absolute(), path.stem, tuple(names)
        self._least = len(names) if least is None else least
        self._starts = _starts(self._path)
        self._file = RandomAccessFile(self._path)
        while len(self._starts) > 1 and not self._line(len(self._starts) - 2).strip():
            self._starts = self._starts[:-1]
        first = self._line(0).lower().split("\t") if len(self._starts) > 1 else []
        self._first = int(set(first) in HEADERS)
        if self._first:
            self._names = tuple("id" if name == "pid" else name for name in first)
            self._least = len(first)
        self.columns = frozenset(self._names)

    def __len__(self) -> int:
        return len(self._starts) - 1 - self._first

    def place(self, index: int) -> str:
        """The file and the number of the line, from 1."""
        return f"{self._path}, line {index + self._first + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The cells of a line; those at its end that it may lack are empty."""
        cells = self._line(index + self._first).split("\t")
        if not self._least <= len(cells) <= len(self._names):
            wanted = "\\t".join(self._names)
            raise Damaged(
                self.place(index), f"the line has {len(cells)} cells, not those of {wanted}"
            )
        cells = [_unquoted(cell) for cell in cells] if self._first else cells
        return dict(zip(self._names, [*cells, *[""] * len(self._names)], strict=False))

    def first_cells(self) -> pa.Array:
        """The first cell of every line, Arrow texts [n]; null where it is empty."""
        parts = [pa.array(block, TEXT) for block in self._first_cells()]
        found = pa.chunked_array(parts, TEXT).combine_chunks()
        return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found

    def _first_cells(self) -> Iterator[list[str | None]]:
        for start in range(self._first, len(self._starts) - 1, BLOCK):
            stop = min(start + BLOCK, len(self._starts) - 1)
            begin, end = self._starts[[start, stop]].tolist()
            lines = self._file.read(begin, end - begin).split(b"\n")[: stop - start]
            cells = [as_utf8(line.split(b"\t", 1)[0]).strip() for line in lines]
            yield [(_unquoted(x) if self._first else x) or None for x in cells]

    def _line(self, number: int) -> str:
        start, stop = self._starts[[number, number + 1]].tolist()
        line = as_utf8(self._file.read(start, stop - start)).rstrip("\r\n")
        return line.removeprefix("\ufeff") if number == 0 else line


def _unquoted(cell: str) -> str:
    quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if quoted else cell


def _starts(path: Path) -> np.ndarray:
    """Where every line starts, and the file's end: int64 [n + 1]."""
    found, at = [np.zeros(1, np.int64)], 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            found.append(at + ends + 1)
            at += len(chunk)
    starts = np.concatenate(found)
    return starts if starts[-1] == at else np.append(starts, at)
