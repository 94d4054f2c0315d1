"""Parquet and npz files as tables whose columns are in memory, except heavy ones."""

import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from big_retrieval.data.damage import first_line
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.handles import reopen, stamp_of
from big_retrieval.io.npy import read_npz

CACHED_GROUPS = 8  # row groups of heavy columns that are kept decoded
HEAVY = 512  # mean bytes of a value above which a column stays on the disk


def row_of(path: str, index: int) -> str:
    """Where a row stands: the file and the number of the row, from 1."""
    return f"{path}, row {index + 1}"


class _ParquetFile(pq.ParquetFile):
    """An open file, which one thread may read at a time. Not mapped: it may be cut meanwhile."""

    def __init__(self, path: str):
        super().__init__(path)
        self.lock = threading.Lock()


class Parquet(Table):
    """A Parquet file; light columns are held in memory, heavy ones (images) read by row group.

    Random access reads a whole row group for one row, so that files with images want small ones;
    `big-retrieval data convert` makes shards that are read record by record.

    Args:
      path: the file.

    Raises:
      UserError: it is no Parquet file, or cut short.
    """

    def __init__(self, path: Path):
        self._path, self.name = path.absolute(), path.stem
        try:
            self._stamp = stamp_of(self._path)
            file = reopen(_ParquetFile, str(self._path), self._stamp)
            self._rows = file.metadata.num_rows
            sizes = _sizes(file.metadata)  # [groups] each
            heavy = HEAVY * self._rows
            self._heavy = frozenset(name for name, size in sizes.items() if sum(size) > heavy)
            names = file.schema_arrow.names
            light = [x for x in names if x not in self._heavy]
            with file.lock:
                self._light = file.read(columns=light)
        except Exception as problem:  # Arrow's, or whatever the bytes of the footer lead to
            raise UserError(
                f"{self._path} is no readable Parquet file ({first_line(problem)})."
            ) from None
        self.columns = self._names = frozenset(names)
        groups = range(file.metadata.num_row_groups)
        counts = [file.metadata.row_group(group).num_rows for group in groups]
        self._starts = np.cumsum([0, *counts])  # [groups + 1]
        # Bytes that are decoded for one row at most: those of the largest row group.
        groups = zip(*(sizes[name] for name in self._heavy), strict=True)
        self.group_bytes = max(map(sum, groups), default=0)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Parquet, (self._path,)

    def __len__(self) -> int:
        return self._rows

    def place(self, index: int) -> str:
        """The file and the number of the row, from 1."""
        return row_of(str(self._path), index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The values of a row."""
        wanted = self._names if columns is None else self._names & set(columns)
        out = {key: self._light[key][index].as_py() for key in wanted - self._heavy}
        if heavy := wanted & self._heavy:
            group = int(np.searchsorted(self._starts, index, side="right")) - 1
            table = self._group(group, index)
            inner = index - int(self._starts[group])
            out |= {key: table[key][inner].as_py() for key in heavy}
        return out

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `Table`; None where the column stays on the disk, too."""
        if name not in self._names - self._heavy or pa.types.is_nested(self._light[name].type):
            return None
        return self._light[name]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the footer and of the bytes of all columns but the heavy ones."""
        out = hashlib.sha256()
        with self._path.open("rb") as file:
            meta = pq.read_metadata(file)
            file.seek(-8 - meta.serialized_size, os.SEEK_END)
            out.update(file.read())  # it has the heavy columns' sizes
            for group in map(meta.row_group, range(meta.num_row_groups)):
                for part in map(group.column, range(group.num_columns)):
                    if part.path_in_schema.split(".")[0] not in self._heavy:
                        file.seek(part.dictionary_page_offset or part.data_page_offset)
                        out.update(file.read(part.total_compressed_size))
        return out.hexdigest()

    def _group(self, group: int, index: int) -> pa.Table:
        with self._lock:
            if group not in self._cache:
                try:
                    file = reopen(_ParquetFile, str(self._path), self._stamp)
                    with file.lock:
                        columns = sorted(self._heavy)
                        self._cache[group] = file.read_row_group(group, columns=columns)
                except UserError:
                    raise
                except Exception as problem:
                    why = f"the row group cannot be read ({first_line(problem)})"
                    raise Damaged(self.place(index), why) from None
                if len(self._cache) > CACHED_GROUPS:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(group)
            return self._cache[group]


def _sizes(meta: pq.FileMetaData) -> dict[str, list[int]]:
    """Bytes of every top-level column in each row group, decoded."""
    sizes: dict[str, list[int]] = {}
    for group in range(meta.num_row_groups):
        part = meta.row_group(group)
        for number in range(part.num_columns):
            column = part.column(number)
            name = column.path_in_schema.split(".")[0]
            sizes.setdefault(name, [0] * meta.num_row_groups)[group] += (
                column.total_uncompressed_size
            )
    return sizes


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
        """The file and the number of the row, from 1."""
        return row_of(str(self._path), index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The values of a row; numbers and strings are Python's."""
        wanted = self._columns.keys() & (self._columns if columns is None else columns)
        found = {key: self._columns[key][index] for key in wanted}
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in found.items()}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `Table`: columns of numbers or texts."""
        found = self._columns.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind not in "iufUb":
            return None
        return pa.chunked_array([pa.array(found)])
