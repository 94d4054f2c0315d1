"""Tables of JSON lines and of numpy arrays, and the reading of a file's parts."""

import json
import os
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.damage import told
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError


class RandomAccessFile:
    """Any part of a file, for any thread; opened again where it is unpickled.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccessFile, (self._path,)

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start` on; fewer at the end of the file."""
        return os.pread(self._file, length, start)


class JsonLines:
    """One JSON object a line; only the place of every line is held in memory (24 bytes each).

    Args:
      path: the file. Empty lines are skipped.
    """

    columns = None

    def __init__(self, path: Path):
        self._path = path.absolute()
        self.name = path.stem
        self._lines = _index(self._path)
        self._file = RandomAccessFile(self._path)

    def __len__(self) -> int:
        return len(self._lines)

    def place(self, index: int) -> str:
        """The file and the number of the line, from 1."""
        return f"{self._path}, line {self._lines[index, 2]}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The object of a line."""
        start, length, _ = self._lines[index].tolist()
        return json_object(self._file.read(start, length), self.place(index))


def json_object(content: bytes, place: str) -> Record:
    """The JSON object of some bytes of a file, UTF-8.

    Raises:
      Damaged: they are something else.
    """
    try:
        row = json.loads(content.decode("utf-8", "replace").removeprefix("\ufeff"))
    except ValueError as problem:
        raise Damaged(place, f"not JSON ({problem})") from None
    except RecursionError:
        raise Damaged(place, "JSON that is nested too deeply") from None
    if not isinstance(row, dict):
        raise Damaged(place, "not a JSON object with keys")
    return row


def _index(path: Path) -> np.ndarray:
    """Start, length in bytes and number of every line that is not empty: int64 [n, 3]."""
    found: list[np.ndarray] = []
    part: list[tuple[int, int, int]] = []
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                part.append((start, len(line), number))
            start += len(line)
            if len(part) == 65536:  # tuples take five times the memory of the array
                found.append(np.array(part, np.int64))
                part = []
    found.append(np.array(part, np.int64).reshape(-1, 3))
    return np.concatenate(found)  # [n, 3]


class Arrays:
    """A .npz file whose arrays are columns; held in memory, never unpickled.

    Args:
      path: the file; its arrays have the same first dimension.

    Raises:
      UserError: it is no such file.
    """

    def __init__(self, path: Path):
        self._path, self.name = path.absolute(), path.stem
        try:
            with np.load(self._path, allow_pickle=False) as file:
                self._columns = {key: file[key] for key in file.files}
        except Exception as problem:  # of zip files, of zlib, of numpy, or no memory
            raise UserError(
                f"{self._path} is no whole .npz file of plain arrays ({told(problem)})."
            ) from None
        lengths = {key: len(value) for key, value in self._columns.items() if value.ndim}
        if len(set(lengths.values())) != 1 or len(lengths) != len(self._columns):
            raise UserError(f"{self._path}: the arrays must have one length, not {lengths}.")
        self.columns = frozenset(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (self._path,)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def place(self, index: int) -> str:
        """The file and the number of the row, from 1."""
        return f"{self._path}, row {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The values of a row; numbers and strings are Python's."""
        wanted = self._columns.keys() & (self._columns if columns is None else columns)
        found = {key: self._columns[key][index] for key in wanted}
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in found.items()}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of a column of numbers or texts; None where it holds arrays, or is missing."""
        found = self._columns.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind not in "iufUb":
            return None
        return pa.chunked_array([pa.array(found)])
