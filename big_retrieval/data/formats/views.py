"""Tables derived from other tables: selected rows, new names, absolute paths, joined columns."""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from big_retrieval.data.formats.columns import TEXT, Keys, as_text, check_ids, scan
from big_retrieval.data.formats.tables import Derived, Table, check_columns, combined_digest
from big_retrieval.data.sources import Record
from big_retrieval.data.stores.ingest import VERSION
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.npy import read_npz

_compute: Any = pc  # pyarrow generates its functions at import; type checkers miss them


class View(Derived):
    """Rows of a table (indices int64 [n]; None for all), with columns renamed by `names`."""

    def __init__(
        self, table: Table, rows: np.ndarray | None = None, names: Mapping[str, str] | None = None
    ):
        super().__init__(table)
        self._rows, self._new = rows, dict(names or {})
        self._original = {new: original for original, new in self._new.items()}
        if table.columns is not None:
            self.columns = frozenset(self._new.get(x, x) for x in table.columns)

    def __len__(self) -> int:
        return len(self._table) if self._rows is None else len(self._rows)

    def _index(self, index: int) -> int:
        return index if self._rows is None else int(self._rows[index])

    def place(self, index: int) -> str:
        return self._table.place(self._index(index))

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        names = None if columns is None else {self._original.get(x, x) for x in columns}
        row = self._table.row(self._index(index), names)
        return {self._new.get(x, x): value for x, value in row.items()} if self._new else row

    def column(self, name: str) -> pa.ChunkedArray | None:
        values = self._table.column(self._original.get(name, name))
        if values is None or self._rows is None:
            return values
        if pa.types.is_string(values.type):
            values = values.cast(TEXT)  # `take` of `pa.string` is limited to 2 GiB
        return values.take(pa.array(self._rows))

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest([self._table.fingerprint], self._rows, self._new)


def selected(table: Table, values: Mapping[str, str], key: str = "where") -> View:
    """Returns the rows whose columns have the wanted values, compared as texts."""
    check_columns(table, values)
    masks = [_equal(table, column, value) for column, value in values.items()]
    rows = np.flatnonzero(np.logical_and.reduce(masks)).astype(np.int64)
    if not len(rows):
        terms = " and ".join(f"{column}={value}" for column, value in values.items())
        raise UserError(f"{table.name} has no row with {terms}; correct `{key}`.")
    return View(table, rows)


def save_rows(path: Path, rows: np.ndarray, table: Table) -> None:
    """Writes row indices from 0, int64 [n], with the fingerprint of their table."""
    np.savez(path, rows=rows, fingerprint=np.array(table.fingerprint), rules=VERSION)


def numbered(table: Table, file: str, data: str) -> View:
    """Returns the rows whose indices are in a file.

    Args:
      file: .npz of `save_rows`, or .npy of integers from 0, [n].
      data: path of the table's data, for messages.
    """
    fingerprint, rules = None, VERSION
    if file.lower().endswith(".npz"):
        arrays = read_npz(Path(file))
        rows, fingerprint = (arrays.get(key, np.empty(0)) for key in ("rows", "fingerprint"))
        if not fingerprint.size:
            raise UserError(f"{file} has no `fingerprint`: write it with `save_rows`, or as .npy.")
        rules = arrays.get("rules", VERSION)
    else:
        try:
            rows = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError) as error:
            raise UserError(f"Cannot read the rows {file} ({error}). Correct `rows`.") from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows):
        raise UserError(f"{file} is not a list of row indices. Correct `rows` of the data.")
    if fingerprint is not None and str(fingerprint) != table.fingerprint:
        reason, remedy = "has changed since", "Restore it"
        if rules != VERSION:
            reason, remedy = "is read by other rules than when", "Use the version that chose them"
        raise UserError(
            f"{data} {reason} the rows in {file} were chosen. {remedy}, or train in another folder."
        )
    if rows.min() < 0 or rows.max() >= len(table):
        raise UserError(
            f"{file} has row {int(rows.max()):,}, but {table.name} has {len(table):,} rows. Set "
            '`rows` of the data to "".'
        )
    return View(table, rows.astype(np.int64))


def _equal(table: Table, name: str, value: str) -> np.ndarray:
    """Returns True for rows with the value, and for damaged rows, which are counted when read."""
    column = table.column(name)
    dtype = None if column is None else column.type
    if dtype in (pa.string(), TEXT) or (dtype is not None and pa.types.is_integer(dtype)):
        equal = _compute.equal(_compute.cast(column, TEXT), value)
        return np.asarray(_compute.fill_null(equal, value == "None"), bool)

    def matches(index: int) -> bool:  # Arrow and Python format other types differently
        try:
            return str(table.row(index, (name,)).get(name)) == value
        except Damaged:
            return True

    return np.fromiter(map(matches, range(len(table))), bool, len(table))


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """Returns a table with renamed columns; a column may already have its new name."""
    if table.columns is not None:
        columns = table.columns
        check_columns(table, [x for x, y in names.items() if y not in columns])
        names = {x: y for x, y in names.items() if x in columns}
        if columns & set(names.values()) - names.keys():
            raise UserError(f"{table.name} has both columns of {names}. Correct `rename`.")
    return View(table, names=names) if names else table


class InFolder(Derived):
    """Makes the relative image paths of a table absolute; they start from the file's folder."""

    def __init__(self, table: Table, folder: Path, image: str):
        super().__init__(table)
        self._folder, self._image = folder.absolute(), image

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        row = self._table.row(index, columns)
        if self._image in row:
            row[self._image] = self._absolute(row[self._image])
        return row

    def _absolute(self, value: Any) -> Any:
        if isinstance(value, Mapping) and not value.get("bytes"):
            return {**value, "path": self._absolute(value.get("path"))}
        if isinstance(value, list):
            return [self._absolute(x) if isinstance(x, str) else x for x in value]
        if isinstance(value, str) and value and "://" not in value:
            return str(self._folder / value)
        return value

    def column(self, name: str) -> pa.ChunkedArray | None:
        return None if name == self._image else self._table.column(name)

    @functools.cached_property
    def fingerprint(self) -> str:
        return self._table.fingerprint  # independent of the folder


class Joined(Derived):
    """Adds the columns of `other`, joined on a text column that is unique in `other`.

    If both tables have a column, the value of the first table counts.
    """

    def __init__(self, table: Table, other: Table, on: str):
        super().__init__(table)
        self._other, self._on = other, on
        check_columns(table, (on,))
        check_columns(other, (on,))
        values = scan(other, (on,)).texts[on]
        check_ids(values, on, other.place, "join on a column without duplicates")
        self._keys = Keys(values)
        if self.columns is not None:
            self.columns = None if other.columns is None else self.columns | other.columns

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        row = self._table.row(index, None if columns is None else {*columns, self._on})
        if columns is not None and set(columns) <= set(row):
            return row
        value = as_text(row.get(self._on))
        if value is None:
            raise Damaged(self.place(index), f"there is no {self._on!r}")
        match = self._keys.find(value)
        if match is None:
            reason = f"{self._other.name} has no row with {self._on} {row[self._on]!r}"
            raise Damaged(self.place(index), reason)
        original = self._table.columns or row.keys()
        added = self._other.row(match, columns)
        return {name: value for name, value in added.items() if name not in original} | row

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest([self._table.fingerprint, self._other.fingerprint], self._on)
