"""Some rows of a table as a table."""

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import at_hand, same_text
from big_retrieval.data.formats.tables import Table, check_columns
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError


class Picked:
    """Rows of a table by their numbers.

    Args:
      table: all rows.
      rows: which ones, int64 [n].
    """

    def __init__(self, table: Table, rows: np.ndarray):
        self._table, self.name, self.columns = table, table.name, table.columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        """That of the whole table."""
        return self._table.place(int(self._rows[index]))

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The row of the whole table."""
        return self._table.row(int(self._rows[index]), columns)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The values of a column, where the whole table holds it."""
        found = at_hand(self._table, name)
        return None if found is None else found.take(pa.array(self._rows))


class Selected(Picked):
    """The rows of a table in which columns have certain values.

    Args:
      table: all rows.
      wanted: column -> value, compared as text.
      key: of the configuration, for messages.

    Raises:
      UserError: no row has them.
    """

    def __init__(self, table: Table, wanted: Mapping[str, str], key: str = "where"):
        check_columns(table, wanted)
        super().__init__(table, _rows(table, wanted))
        if not len(self._rows):
            terms = " and ".join(f"{column}={value}" for column, value in wanted.items())
            raise UserError(f"{table.name} has no row with {terms}; correct `{key}`.")


def _rows(table: Table, wanted: Mapping[str, str]) -> np.ndarray:
    """The rows that have all values: int64 [n]."""
    masks = [same_text(table, column, value) for column, value in wanted.items()]
    found = [mask for mask in masks if mask is not None]
    if len(found) == len(masks):
        return np.flatnonzero(np.logical_and.reduce(found)).astype(np.int64)
    return np.array([i for i in range(len(table)) if _fits(table, i, wanted)], np.int64)


def _fits(table: Table, index: int, wanted: Mapping[str, str]) -> bool:
    try:
        row = table.row(index, wanted)
    except Damaged:
        return True  # counted where it is read
    return all(str(row.get(column)) == value for column, value in wanted.items())


class Renamed:
    """A table some of whose columns are called otherwise; one that is called so already may be.

    Args:
      table: the rows.
      names: column -> its new name.

    Raises:
      UserError: the table has neither the column nor the new name, or has both.
    """

    def __init__(self, table: Table, names: Mapping[str, str]):
        self._table, self.name, self._new = table, table.name, dict(names)
        self.columns = None
        if table.columns is not None:
            check_columns(table, [x for x, y in names.items() if y not in table.columns])
            self._new = {x: y for x, y in names.items() if x in table.columns}
            self.columns = frozenset(self._new.get(x, x) for x in table.columns)
        self._own = {new: own for own, new in self._new.items()}
        if self.columns is not None and len(self.columns) < len(table.columns or ()):
            raise UserError(
                f"{table.name} has both columns of {self._new}; correct `rename` of the data."
            )

    def __len__(self) -> int:
        return len(self._table)

    def place(self, index: int) -> str:
        """That of the table."""
        return self._table.place(index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """A row under the new names."""
        own = None if columns is None else {self._own.get(x, x) for x in columns}
        row = self._table.row(index, own)
        return {self._new.get(x, x): value for x, value in row.items()}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The values of a column, where the table holds it."""
        return at_hand(self._table, self._own.get(name, name))
