"""Tables: rows by index, nothing decoded; what the files of own data are, whatever their format.

`records.Records` makes a source of a table. Tables are read from several threads and, pickled,
from several processes; they hold no more than they must and open their files again when unpickled.
"""

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError

DIGESTED = 1024  # rows that are written as one JSON text


class Table:
    """The base of tables: a fixed number of rows.

    Attributes:
      name: a short name for logs and record ids.
      columns: the columns of every row; None where rows may differ.
    """

    name: str
    columns: frozenset[str] | None = None

    def __len__(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Row `index`, a new dict; of `columns` those that it has, and perhaps more; None: all.

        Raises:
          Damaged: the row cannot be read.
        """
        raise NotImplementedError

    def place(self, index: int) -> str:
        """Where a row stands, for messages, such as `pairs.jsonl, line 7`."""
        return f"{self.name}, row {index + 1}"

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The single values that all rows have in a column; None: read them row by row."""
        del name
        return None

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of all rows in their order, whatever the paths and times of their files.

        "" if it is not known, as of a table of your own that does not define it.
        """
        return ""


def digest_of(values: Iterable[Any]) -> str:
    """Returns the SHA-256 of values that rows may hold, such as dicts, texts, bytes and arrays.

    Returns "" for other objects, of which nothing is known.
    """
    out = hashlib.sha256()
    try:
        for value in values:
            text = json.dumps(value, sort_keys=True, default=_as_json)
            out.update(f"{len(text)} {text}".encode())
    except TypeError:
        return ""
    return out.hexdigest()


def combined_digest(fingerprints: Iterable[str], *values: Any) -> str:
    """Returns the digest of tables' fingerprints and of other values; "" if one is not known."""
    known = list(fingerprints)
    return digest_of([*known, *values]) if all(known) else ""


def _as_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, _as_json(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError(type(value))


class Derived(Table):
    """Base class of tables made of another table; by default its rows as they are."""

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


class Chain(Table):
    """Several tables as one, such as shards."""

    def __init__(self, tables: Sequence[Table], name: str):
        self.name, self._tables = name, list(tables)
        self._ends = list(itertools.accumulate(len(table) for table in tables))
        columns = [table.columns for table in tables]
        known = [each for each in columns if each is not None]
        self.columns = frozenset.intersection(*known) if len(known) == len(columns) else None

    def _find(self, index: int) -> tuple[Table, int]:
        number = bisect.bisect_right(self._ends, index)
        return self._tables[number], index - (self._ends[number - 1] if number else 0)

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, index: int) -> str:
        table, own = self._find(index)
        return table.place(own)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        table, own = self._find(index)
        return table.row(own, columns)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `Table`; None, too, where the tables differ in their columns or types."""
        if len({table.columns for table in self._tables}) > 1:
            return None
        found = [table.column(name) for table in self._tables]
        whole = [each for each in found if each is not None]
        if len(whole) < len(found) or len({each.type for each in whole}) > 1:
            return None
        return pa.chunked_array([chunk for each in whole for chunk in each.chunks], whole[0].type)

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest(table.fingerprint for table in self._tables)


def check_columns(table: Table, columns: Collection[str], key: str = "", remedy: str = "") -> None:
    """Raises a UserError for the first column that a table with fixed columns lacks.

    Args:
      key: of the data's configuration, which names these columns; "": not to be told.
      remedy: what else to do about it.
    """
    if table.columns is not None:
        check_known(table.name, table.columns, columns, key, remedy)


def check_known(
    name: str, columns: Collection[str], wanted: Collection[str], key: str = "", remedy: str = ""
) -> None:
    """Raises a UserError for the first wanted column that something lacks."""
    for column in wanted:
        if column not in columns:
            known = ", ".join(sorted(columns))
            said = f'name one by the key {key!r} of the data, or set it to ""' if key else remedy
            more = f": {said}" if said else ""
            raise UserError(f"{name} has no column {column!r}; it has {known}{more}.")
