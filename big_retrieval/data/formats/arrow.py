"""CSV, TSV and Parquet files as tables, read by Arrow."""

import threading
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError

CACHED_GROUPS = 8  # row groups of heavy columns that are kept decoded
HEAVY = 512  # mean bytes of a value above which a column stays on the disk


class Csv:
    """A CSV or TSV file with a header line; all values are str, and held in memory.

    Args:
      path: the file, UTF-8; cells in quotes may hold line ends.
      delimiter: between cells.

    Raises:
      UserError: it cannot be read, such as a row with another number of cells.
    """

    def __init__(self, path: Path, delimiter: str):
        self._path, self._delimiter = path.absolute(), delimiter
        self.name = path.stem
        options = pa_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        try:
            with pa_csv.open_csv(self._path, parse_options=options) as reader:
                names = reader.schema.names
            self._table = pa_csv.read_csv(
                self._path,
                parse_options=options,
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
        except Exception as problem:  # Arrow's, or of a header that is not in UTF-8
            raise UserError(f"{self._path} is no readable CSV file ({_first(problem)}).") from None
        self.columns = frozenset(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return Csv, (self._path, self._delimiter)

    def __len__(self) -> int:
        return self._table.num_rows

    def place(self, index: int) -> str:
        """The file and the number of the row behind the header, from 1."""
        return f"{self._path}, row {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The cells of a row."""
        wanted = self.columns if columns is None else self.columns & set(columns)
        return {key: self._table[key][index].as_py() for key in wanted}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All cells of a column; None where there is no such column."""
        return self._table[name] if name in self.columns else None


class Parquet:
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
            self._file = pq.ParquetFile(self._path, memory_map=True)
            names = self._file.schema_arrow.names
            self._heavy = _heavy(self._file)
            light = [name for name in names if name not in self._heavy]
            self._light = self._file.read(columns=light)
        except Exception as problem:  # Arrow's, or whatever the bytes of the footer lead to
            raise UserError(
                f"{self._path} is no readable Parquet file ({_first(problem)})."
            ) from None
        groups = self._file.metadata.num_row_groups
        counts = [self._file.metadata.row_group(group).num_rows for group in range(groups)]
        self._starts = np.cumsum([0, *counts])  # [groups + 1]
        self.columns = frozenset(names)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Parquet, (self._path,)

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    @property
    def group_bytes(self) -> int:
        """Bytes that are decoded for one row at most: those of the largest row group."""
        meta = self._file.metadata
        return max((_bytes_of(meta.row_group(i), self._heavy) for i in self._groups()), default=0)

    def _groups(self) -> range:
        return range(self._file.metadata.num_row_groups)

    def place(self, index: int) -> str:
        """The file and the number of the row, from 1."""
        return f"{self._path}, row {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The values of a row."""
        wanted = self.columns if columns is None else self.columns & set(columns)
        light, heavy = wanted - self._heavy, wanted & self._heavy
        out = {key: self._light[key][index].as_py() for key in light}
        if heavy:
            group = int(np.searchsorted(self._starts, index, side="right")) - 1
            table = self._group(group, index)
            inner = index - int(self._starts[group])
            out |= {key: table[key][inner].as_py() for key in heavy}
        return out

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of a light column; None where it stays on the disk, or is not there."""
        return self._light[name] if name in self.columns - self._heavy else None

    def _group(self, group: int, index: int) -> pa.Table:
        with self._lock:
            if group not in self._cache:
                try:
                    columns = sorted(self._heavy)
                    self._cache[group] = self._file.read_row_group(group, columns=columns)
                except Exception as problem:
                    why = f"the row group cannot be read ({_first(problem)})"
                    raise Damaged(self.place(index), why) from None
                while len(self._cache) > CACHED_GROUPS:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(group)
            return self._cache[group]


def _heavy(file: pq.ParquetFile) -> frozenset[str]:
    """The top-level columns whose values are large."""
    meta = file.metadata
    sizes: dict[str, int] = {}
    for group in range(meta.num_row_groups):
        part = meta.row_group(group)
        for number in range(part.num_columns):
            column = part.column(number)
            name = column.path_in_schema.split(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
    return frozenset(name for name, size in sizes.items() if size > HEAVY * meta.num_rows)


def _bytes_of(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema.split(".")[0] in names
    )


def _first(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0].rstrip(".")
