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
    """A .npz file whose arrays are columns; held in memory, never unpickled.

    Args:
      path: the file; its arrays have the same first dimension.

    Raises:
      UserError: it is no such file.
    """

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
        wanted = self._columns.keys() & (self._columns if columns is None else columns)
        found = {key: self._columns[key][index] for key in wanted}
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in found.items()}

    def column(self, name: str) -> pa.ChunkedArray | None:
        found = self._columns.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind not in "iufUb":
            return None
        return pa.chunked_array([pa.array(found)])

    @functools.cached_property
    def fingerprint(self) -> str:
        return digest_of(sorted(self._columns.items(), key=lambda pair: pair[0]))
