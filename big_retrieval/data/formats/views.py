"""Tables made of other tables: some rows, other names, whole paths, columns of a second table."""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from big_retrieval.data.formats.columns import TEXT, Keys, as_text, check_ids, scan
from big_retrieval.data.formats.tables import Table, check_columns, combined_digest
from big_retrieval.data.sources import Record
from big_retrieval.data.stores.ingest import VERSION
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.npy import read_npz

_compute: Any = pc  # its functions are made when it is imported, which types cannot see


class View(Table):
    """Some rows of a table, or its columns under other names.

    Args:
      table: all rows.
      rows: which ones, int64 [n]; None: all.
      names: column -> its new name.
    """

    def __init__(
        self, table: Table, rows: np.ndarray | None = None, names: Mapping[str, str] | None = None
    ):
        self._table, self.name = table, table.name
        self._rows, self._new = rows, dict(names or {})
        self._own = {new: own for own, new in self._new.items()}
        if table.columns is not None:
            self.columns = frozenset(self._new.get(x, x) for x in table.columns)

    def __len__(self) -> int:
        return len(self._table) if self._rows is None else len(self._rows)

    def _at(self, index: int) -> int:
        return index if self._rows is None else int(self._rows[index])

    def place(self, index: int) -> str:
        """That of the whole table."""
        return self._table.place(self._at(index))

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The row of the whole table, under the new names."""
        own = None if columns is None else {self._own.get(x, x) for x in columns}
        row = self._table.row(self._at(index), own)
        return {self._new.get(x, x): value for x, value in row.items()} if self._new else row

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `Table`."""
        found = self._table.column(self._own.get(name, name))
        if found is None or self._rows is None:
            return found
        if pa.types.is_string(found.type):
            found = found.cast(TEXT)  # Arrow takes rows of no more than 2 GiB of `pa.string`
        return found.take(pa.array(self._rows))

    @functools.cached_property
    def fingerprint(self) -> str:
        """See `Table`."""
        return combined_digest([self._table.fingerprint], self._rows, self._new)


def selected(table: Table, wanted: Mapping[str, str], key: str = "where") -> View:
    """The rows of a table in which columns have certain values.

    Args:
      table: all rows.
      wanted: column -> value, compared as text.
      key: of the configuration, for messages.

    Raises:
      UserError: no row has them.
    """
    check_columns(table, wanted)
    masks = [_equal(table, column, value) for column, value in wanted.items()]
    rows = np.flatnonzero(np.logical_and.reduce(masks)).astype(np.int64)
    if not len(rows):
        terms = " and ".join(f"{column}={value}" for column, value in wanted.items())
        raise UserError(f"{table.name} has no row with {terms}; correct `{key}`.")
    return View(table, rows)


def save_rows(path: Path, rows: np.ndarray, table: Table) -> None:
    """Writes row indices with the fingerprint of their table, as `numbered` reads them.

    Args:
      path: the file, .npz.
      rows: the indices, from 0, int64 [n].
      table: all rows.
    """
    np.savez(path, rows=rows, fingerprint=np.array(table.fingerprint), rules=VERSION)


def numbered(table: Table, file: str, data: str) -> View:
    """Returns the rows of a table whose indices a file holds.

    Args:
      table: all rows.
      file: .npz that `save_rows` wrote, or .npy of integers from 0, [n].
      data: path of the table's files, for messages.

    Raises:
      UserError: the file cannot be read, is empty, or was made for other rows.
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
            raise UserError(f"the rows {file} cannot be read ({error}); correct `rows`.") from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows):
        raise UserError(f"{file} is not a list of row indices; correct `rows` of the data.")
    if fingerprint is not None and str(fingerprint) != table.fingerprint:
        reason, remedy = "has changed since", "restore it"
        if rules != VERSION:
            reason = "is read by other rules than when"
            remedy = "use the version of big_retrieval that chose them"
        raise UserError(
            f"{data} {reason} the rows in {file} were chosen: {remedy}, or train in another folder."
        )
    if rows.min() < 0 or rows.max() >= len(table):
        raise UserError(
            f"{file} names row {int(rows.max()):,}, but {table.name} has {len(table):,} rows: they "
            'are of other data; set `rows` of the data to "".'
        )
    return View(table, rows.astype(np.int64))


def _equal(table: Table, name: str, value: str) -> np.ndarray:
    """Which rows have a value in a column: bool [n]; damaged ones, too, to be counted later."""
    found = table.column(name)
    kind = None if found is None else found.type
    if kind in (pa.string(), TEXT) or (kind is not None and pa.types.is_integer(kind)):
        equal = _compute.equal(_compute.cast(found, TEXT), value)
        return np.asarray(_compute.fill_null(equal, value == "None"), bool)

    def fits(index: int) -> bool:  # Python writes other types in other ways than Arrow
        try:
            return str(table.row(index, (name,)).get(name)) == value
        except Damaged:
            return True

    return np.fromiter(map(fits, range(len(table))), bool, len(table))


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """A table some of whose columns are called otherwise; one that is called so already may be.

    Args:
      table: the rows.
      names: column -> its new name.

    Raises:
      UserError: the table has neither the column nor the new name, or has both.
    """
    known = table.columns
    if known is not None:
        check_columns(table, [x for x, y in names.items() if y not in known])
        names = {x: y for x, y in names.items() if x in known}
        if known & set(names.values()) - names.keys():
            raise UserError(
                f"{table.name} has both columns of {names}; correct `rename` of the data."
            )
    return View(table, names=names) if names else table


class InFolder(Table):
    """A table whose image paths start from a folder of its own; they are made whole.

    Args:
      table: the rows.
      folder: the folder.
      images: the columns of image paths.
    """

    def __init__(self, table: Table, folder: Path, images: Collection[str]):
        self._table, self._folder, self._images = table, folder.absolute(), images
        self.name, self.columns = table.name, table.columns

    def __len__(self) -> int:
        return len(self._table)

    def place(self, index: int) -> str:
        """That of the table."""
        return self._table.place(index)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The row of the table, with whole paths."""
        row = self._table.row(index, columns)
        for name in self._images:
            if name in row:
                row[name] = self._whole(row[name])
        return row

    def _whole(self, value: Any) -> Any:
        """What a cell holds, with whole paths where it holds one or several."""
        if isinstance(value, Mapping) and not value.get("bytes"):
            return {**value, "path": self._whole(value.get("path"))}
        if isinstance(value, list):
            return [self._whole(each) if isinstance(each, str) else each for each in value]
        if isinstance(value, str) and value and "://" not in value:
            return str(self._folder / value)
        return value

    def column(self, name: str) -> pa.ChunkedArray | None:
        """See `Table`."""
        return None if name in self._images else self._table.column(name)

    @functools.cached_property
    def fingerprint(self) -> str:
        """That of the table, wherever its folder is."""
        return self._table.fingerprint


class Joined(Table):
    """A table with the columns that another one has for the same value of a shared column.

    Args:
      table: its rows and columns are kept.
      other: adds the columns that `table` lacks.
      on: the shared column, whose values are compared as texts.

    Raises:
      UserError: `other` has a value twice, or one of the tables lacks the column.
    """

    def __init__(self, table: Table, other: Table, on: str):
        self._table, self._other, self._on, self.name = table, other, on, table.name
        check_columns(table, (on,))
        check_columns(other, (on,))
        values = scan(other, (on,)).texts[on]
        check_ids(values, on, other.place, "join on a column without duplicates")
        self._rows = Keys(values)
        if table.columns is not None and other.columns is not None:
            self.columns = table.columns | other.columns

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
        value = as_text(row.get(self._on))
        if value is None:
            raise Damaged(self.place(index), f"there is no {self._on!r}")
        found = self._rows.find(value)
        if found is None:
            why = f"{self._other.name} has no row with {self._on} {row[self._on]!r}"
            raise Damaged(self.place(index), why)
        own = self._table.columns or row.keys()
        added = self._other.row(found, columns)
        return {name: value for name, value in added.items() if name not in own} | row

    @functools.cached_property
    def fingerprint(self) -> str:
        """See `Table`."""
        return combined_digest([self._table.fingerprint, self._other.fingerprint], self._on)
