"""Arrays of npz files as a table in memory."""

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.tables import Table, digest_of
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError
from big_retrieval.io.npy import read_npz


class Arrays(Table):
    """The arrays of a .npz file as columns, in memory; all have the same first dimension."""

    def __init__(self, path: Path):
        self._path, self.name = path.absolute(), path.stem
        self._columns = read_npz(self._path)
        lengths = {key: len(value) for key, value in self._columns.items() if value.ndim}
        if len(set(lengths.values())) != 1 or len(lengths) != len(self._columns):
            raise UserError(f"{self._path}: the arrays must have one length, not {lengths}.")
        self.columns = frozenset(self._columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (self._path,)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def place(self, index: int) -> str:
        return f"{self._path}, row {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        names = self._columns.keys() & (self._columns if columns is None else columns)
        row = {name: self._columns[name][index] for name in names}
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in row.items()}

    def column(self, name: str) -> pa.ChunkedArray | None:
        array = self._columns.get(name)
        if array is None or array.ndim != 1 or array.dtype.kind not in "iufUb":
            return None
        return pa.chunked_array([pa.array(array)])

    @functools.cached_property
    def fingerprint(self) -> str:
        return digest_of(sorted(self._columns.items(), key=lambda pair: pair[0]))
