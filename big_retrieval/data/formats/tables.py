"""Tables: rows by index, with values as the files have them.

`records.Records` turns a table into a source. Threads and processes share tables by pickling; a
table keeps little in memory, and opens its files again after unpickling.
"""

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError
from big_retrieval.io.npy import read_npz

DIGESTED = 1024  # rows per JSON text


class Table:
    """Base class of tables, with a fixed number of rows.

    Attributes:
      name: short name for logs and record ids.
      columns: columns of every row; None if rows may differ.
    """

    name: str
    columns: frozenset[str] | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Returns a row as a new dict; with `columns`, at least these columns, if the row has them.

        Raises:
          Damaged: the row cannot be read.
        """
        raise NotImplementedError

    def place(self, index: int) -> str:
        """Returns the location of a row for messages, such as `pairs.jsonl, line 7`."""
        return f"{self.name}, row {index + 1}"

    def column(self, name: str) -> pa.ChunkedArray | None:
        """Returns all values of a column with one scalar type; None if they must be read by row."""
        del name
        return None

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of all rows in their order, independent of file paths; empty if unknown."""
        return ""


def digest_of(values: Iterable[Any]) -> str:
    """Returns the SHA-256 of values that JSON can represent, bytes and arrays; else ""."""
    out = hashlib.sha256()
    try:
        for value in values:
            text = json.dumps(value, sort_keys=True, default=_to_json)
            out.update(f"{len(text)} {text}".encode())
    except TypeError:
        return ""
    return out.hexdigest()


def combined_digest(fingerprints: Iterable[str], *values: Any) -> str:
    """Returns the digest of fingerprints and other values; empty if a fingerprint is empty."""
    parts = list(fingerprints)
    return digest_of([*parts, *values]) if all(parts) else ""


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, _to_json(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError(type(value))


class Derived(Table):
    """Base class of tables that change another table; by default, rows are unchanged."""

    def __init__(self, table: Table):
        self._table, self.name, self.columns = table, table.name, table.columns

    def __len__(self) -> int:
        return len(self._table)

    def place(self, index: int) -> str:
        return self._table.place(index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        return self._table.row(index, columns)


class Rows(Table):
    """Rows in memory, as Python objects."""

    def __init__(self, rows: Sequence[Record], name: str):
        self._rows, self.name = rows, name
        self.columns = frozenset(rows[0]) if rows else frozenset()

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        return dict(self._rows[index])

    @functools.cached_property
    def fingerprint(self) -> str:
        starts = range(0, len(self), DIGESTED)
        return digest_of(list(self._rows[start : start + DIGESTED]) for start in starts)


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


class Chain(Table):
    """Several tables as one, such as shards."""

    def __init__(self, tables: Sequence[Table], name: str):
        self.name, self._tables = name, list(tables)
        self._ends = list(itertools.accumulate(len(table) for table in tables))
        columns = [table.columns for table in tables if table.columns is not None]
        is_fixed = len(columns) == len(tables)
        self.columns = frozenset.intersection(*columns) if is_fixed else None

    def _find(self, index: int) -> tuple[Table, int]:
        table_index = bisect.bisect_right(self._ends, index)
        start = self._ends[table_index - 1] if table_index else 0
        return self._tables[table_index], index - start

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, index: int) -> str:
        table, inner = self._find(index)
        return table.place(inner)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        table, inner = self._find(index)
        return table.row(inner, columns)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """Returns None also if the columns or types of the tables differ."""
        if len({table.columns for table in self._tables}) > 1:
            return None
        columns = [table.column(name) for table in self._tables]
        arrays = [array for array in columns if array is not None]
        if len(arrays) < len(columns) or len({array.type for array in arrays}) > 1:
            return None
        return pa.chunked_array([x for array in arrays for x in array.chunks], arrays[0].type)

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest(table.fingerprint for table in self._tables)


def check_columns(table: Table, columns: Collection[str], key: str = "", remedy: str = "") -> None:
    """Raises a UserError for the first column that a table with fixed columns does not have.

    Args:
      key: key of the data's config that names these columns; empty for no key.
      remedy: advice for the error message if there is no key.
    """
    if table.columns is not None:
        check_known(table.name, table.columns, columns, key, remedy)


def check_known(
    name: str, columns: Collection[str], names: Collection[str], key: str = "", remedy: str = ""
) -> None:
    """Raises a UserError for the first of the `names` columns that is missing."""
    for column in names:
        if column not in columns:
            advice = f'name one by the key {key!r} of the data, or set it to ""' if key else remedy
            end = f": {advice}." if advice else "."
            available = ", ".join(sorted(columns))
            raise UserError(f"{name} has no column {column!r}; it has {available}{end}")
