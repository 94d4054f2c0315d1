"""Rows by index, nothing decoded: what the files of own data are, whatever their format.

`records.Records` makes a source of a table. Tables are read from several threads and, pickled,
from several processes; they hold no more than they must and open their files again when unpickled.
"""

import bisect
import itertools
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import pyarrow as pa

from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError


class Table(Protocol):
    """A fixed number of rows.

    A table that holds whole columns may also have `column(name: str) -> pyarrow.ChunkedArray |
    None`, the values of all rows; None: read them row by row. `columns.scan` uses it.
    """

    @property
    def name(self) -> str:
        """A short name for logs and record ids."""
        ...

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns of every row; None where rows may differ."""
        ...

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Row `index`, a new dict; of `columns` those that it has, and perhaps more; None: all.

        Raises:
          Damaged: the row cannot be read.
        """
        ...

    def place(self, index: int) -> str:
        """Where a row stands, for messages, such as `pairs.jsonl, line 7`."""
        ...


class Rows:
    """Rows at hand.

    Args:
      rows: the rows; all have the first one's columns.
      name: of the table.
    """

    def __init__(self, rows: Sequence[Record], name: str):
        self._rows, self.name = rows, name
        self.columns = frozenset(rows[0]) if rows else frozenset()

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        """The name and the number of the row, from 1."""
        return f"{self.name}, entry {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """A copy of a row."""
        return dict(self._rows[index])


class Chain:
    """Several tables as one, such as shards.

    Args:
      tables: at least one.
      name: of all.
    """

    def __init__(self, tables: Sequence[Table], name: str):
        self.name = name
        self._tables = list(tables)
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
        """That of the table that has the row."""
        table, own = self._find(index)
        return table.place(own)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The row of the table that has it."""
        table, own = self._find(index)
        return table.row(own, columns)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of a column, where every table holds it as a whole and has the same ones."""
        if len({table.columns for table in self._tables}) > 1:
            return None
        found = [getattr(table, "column", lambda name: None)(name) for table in self._tables]
        whole: list[pa.ChunkedArray] = [each for each in found if each is not None]
        types = {each.type for each in whole}
        if len(whole) < len(found) or len(types) > 1:
            return None
        return pa.chunked_array([chunk for each in whole for chunk in each.chunks], types.pop())


class Joined:
    """A table with the columns that another one has for the same value of a shared column.

    Args:
      table: its rows and columns are kept.
      other: adds the columns that `table` lacks.
      on: the shared column.

    Raises:
      UserError: `other` has a value twice, or one of the tables lacks the column.
    """

    def __init__(self, table: Table, other: Table, on: str):
        self._table, self._other, self._on, self.name = table, other, on, table.name
        check_columns(table, (on,))
        check_columns(other, (on,))
        self._rows: dict[Any, int] = {}
        for index in range(len(other)):
            value = _value(other.row(index, (on,)), on, other.place(index))
            if self._rows.setdefault(value, index) != index:
                raise UserError(
                    f"{other.place(index)}: {on} {value!r} is there already "
                    f"({other.place(self._rows[value])}); join on a column without duplicates."
                )
        both = table.columns is not None and other.columns is not None
        self.columns = (table.columns or frozenset()) | (other.columns or frozenset())
        self.columns = self.columns if both else None

    def __len__(self) -> int:
        return len(self._table)

    def place(self, index: int) -> str:
        """That of the first table."""
        return self._table.place(index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """A row with what the other table adds."""
        row = self._table.row(index, None if columns is None else {*columns, self._on})
        if columns is not None and set(columns) <= set(row):
            return row
        value = _value(row, self._on, self.place(index))
        if value not in self._rows:
            why = f"{self._other.name} has no row with {self._on} {value!r}"
            raise Damaged(self.place(index), why)
        return {**self._other.row(self._rows[value], columns), **row}


def check_columns(table: Table, columns: Collection[str]) -> None:
    """Raises a UserError for the first column that a table with fixed columns lacks."""
    if table.columns is not None:
        check_known(table.name, table.columns, columns)


def check_known(name: str, columns: Collection[str], wanted: Collection[str]) -> None:
    """Raises a UserError for the first wanted column that something lacks.

    Args:
      name: of what has the columns.
      columns: that it has.
      wanted: those that it must have.
    """
    for column in wanted:
        if column not in columns:
            known = ", ".join(sorted(columns))
            raise UserError(f"{name} has no column {column!r}; it has {known}.")


def _value(row: Record, column: str, place: str) -> Any:
    if column not in row:
        raise Damaged(place, f"there is no {column!r}; it has {', '.join(sorted(row))}")
    return row[column]
