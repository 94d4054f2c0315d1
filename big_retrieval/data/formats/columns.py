"""Whole columns of a table, as compact arrays: ids as Arrow texts, scores as numbers.

Tables that hold their columns (CSV, TSV, Parquet, npz) give them at once; of others every row is
read, in blocks, so that millions of rows are never held as Python objects.
"""

import bisect
import contextlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import as_utf8, is_absent
from big_retrieval.errors import UserError

BLOCK = 65536  # rows that are held as Python objects at a time
TEXT = pa.large_string()  # ids and titles of a data set may exceed 2 GiB
_compute: Any = pc  # its functions are made when it is imported, which types cannot see


@dataclass(frozen=True)
class Scan:
    """Columns of all rows.

    Attributes:
      texts: name -> Arrow texts [n]; null where a row has nothing there (`sources.is_absent`).
      numbers: name -> float64 [n]; NaN where a row has nothing there.
      columns: all columns that rows have.
    """

    texts: dict[str, pa.Array]
    numbers: dict[str, np.ndarray]
    columns: frozenset[str]


def scan(table: Table, texts: Collection[str], numbers: Collection[str] = ()) -> Scan:
    """Reads columns of all rows of a table.

    Args:
      table: the rows.
      texts: columns that are read as texts; numbers are written out, 5.0 as "5".
      numbers: columns that are read as numbers, which may be written as texts.

    Raises:
      UserError: a row that cannot be read, or a value that is no number, named by its place.
    """
    whole = {name: at_hand(table, name) for name in (*texts, *numbers)}
    if table.columns is not None and all(value is not None for value in whole.values()):
        made = {name: _arrow_texts(whole[name]) for name in texts}
        counts = {name: _arrow_numbers(whole[name], name, table.place) for name in numbers}
        return Scan(made, counts, table.columns)
    columns: set[str] = set(table.columns or ())
    parts: dict[str, list[pa.Array]] = {name: [] for name in texts}
    counts: dict[str, np.ndarray] = {name: np.full(len(table), np.nan) for name in numbers}
    for start in range(0, len(table), BLOCK):
        rows = range(start, min(start + BLOCK, len(table)))
        block = [table.row(index, {*texts, *numbers}) for index in rows]
        columns.update(*block)
        for name in texts:
            parts[name].append(pa.array([as_text(row.get(name)) for row in block], TEXT))
        for name in numbers:
            found = [
                as_number(row.get(name), name, table.place, start + i)
                for i, row in enumerate(block)
            ]
            counts[name][start : start + len(block)] = found
    joined = {name: _joined(pa.chunked_array(blocks, TEXT)) for name, blocks in parts.items()}
    return Scan(joined, counts, frozenset(columns))


def at_hand(table: Table, name: str) -> pa.ChunkedArray | None:
    """A column that the table holds as a whole, of single values; None: read the rows."""
    column: Callable[[str], pa.ChunkedArray | None] | None = getattr(table, "column", None)
    found = None if column is None else column(name)
    return None if found is None or pa.types.is_nested(found.type) else found


def same_text(table: Table, name: str, value: str) -> np.ndarray | None:
    """Which rows have a value in a column, compared as text: bool [n]; None: read the rows."""
    found = at_hand(table, name)
    if found is None or not (
        pa.types.is_string(found.type)
        or pa.types.is_large_string(found.type)
        or pa.types.is_integer(found.type)
    ):
        return None  # Python writes other types in other ways
    equal = _compute.equal(_compute.cast(found, TEXT), value)
    return np.asarray(_compute.fill_null(equal, value == "None"), bool)


def as_text(value: Any) -> str | None:
    """A value as text; None where there is none."""
    if is_absent(value):
        return None
    if isinstance(value, str | bytes):
        return as_utf8(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return as_utf8(json.dumps(value) if isinstance(value, list | dict) else str(value))


def encode(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Numbers texts in the order in which they come first.

    Args:
      texts: [n], without null.

    Returns:
      The number of each text, int32 [n], and the different texts [k].
    """
    found = _joined(texts.dictionary_encode())
    return np.asarray(found.indices, np.int32), found.dictionary


def match(texts: pa.Array, known: pa.Array) -> np.ndarray:
    """Where each text stands among the known ones: int64 [n], -1 where it is unknown."""
    found = _compute.index_in(texts, value_set=known)
    return np.asarray(_compute.fill_null(found, -1), np.int64)


def first_double(texts: pa.Array) -> tuple[int, int] | None:
    """The first text that is there already: (its row, the earlier row); None: all differ."""
    codes, different = encode(texts)
    if len(different) == len(codes):
        return None
    top = np.maximum.accumulate(codes)
    later = int(np.flatnonzero(codes[1:] <= top[:-1])[0]) + 1
    return later, int(np.flatnonzero(codes == codes[later])[0])


def check_ids(
    ids: pa.Array, column: str, place: Callable[[int], str], *, missing: str, remedy: str
) -> None:
    """Checks that every row has an id of its own.

    Args:
      ids: Arrow texts [n], null where a row has none.
      column: of the ids, for messages.
      place: where a row stands.
      missing: what is said of a row without one, and what to do.
      remedy: what to do about an id that two rows have.

    Raises:
      UserError: names the first such row, or the first two rows with the same id.
    """
    if ids.null_count:
        raise UserError(f"{place(int(np.flatnonzero(np.asarray(ids.is_null()))[0]))}: {missing}.")
    double = first_double(ids)
    if double is not None:
        later, earlier = double
        value = ids[later].as_py()
        raise UserError(
            f"{place(later)}: {column} {value!r} is there already ({place(earlier)}); {remedy}."
        )


class Keys:
    """Which row has a key; holds the keys once, sorted, and 8 bytes for each.

    Args:
      keys: Arrow texts [n], without null and without doubles.
    """

    def __init__(self, keys: pa.Array):
        order = _compute.array_sort_indices(keys)
        self._rows = np.asarray(order).astype(np.int64)  # [n]
        self._sorted = keys.take(order)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: str) -> int | None:
        """The row of a key."""
        texts: Any = self._sorted
        place = bisect.bisect_left(texts, key, key=lambda each: each.as_py())
        if place == len(self) or texts[place].as_py() != key:
            return None
        return int(self._rows[place])


def as_number(value: Any, name: str, place: Callable[[int], str], index: int) -> float:
    """A number, perhaps written as text; NaN where there is none.

    Args:
      value: what a row has.
      name: the column, for messages.
      place: where a row stands, for messages.
      index: the row.

    Raises:
      UserError: it is something else.
    """
    if is_absent(value):
        return float("nan")
    try:
        return float(value)
    except OverflowError:  # a whole number of JSON's may have any number of digits
        raise UserError(f"{place(index)}: {name!r} is {value!r:.60}, which is too large.") from None
    except (TypeError, ValueError):
        raise UserError(f"{place(index)}: {name!r} is {value!r:.60}, not a number.") from None


def _joined(found: Any) -> Any:
    """One array of one chunk."""
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _arrow_texts(column: Any) -> pa.Array:
    """A column of Arrow's as `Scan.texts` says."""
    if pa.types.is_floating(column.type):
        column = _compute.if_else(_compute.is_nan(column), None, column)
        with contextlib.suppress(pa.ArrowInvalid):  # some are not whole
            column = _compute.cast(column, pa.int64())
    texts = _joined(_compute.cast(column, TEXT))
    blank = _compute.equal(_compute.utf8_trim_whitespace(texts), "")
    return _compute.if_else(blank, pa.scalar(None, TEXT), texts)


def _arrow_numbers(column: Any, name: str, place: Callable[[int], str]) -> np.ndarray:
    """A column of Arrow's as `Scan.numbers` says."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts = _compute.utf8_trim_whitespace(column)
        column = _compute.if_else(_compute.equal(texts, ""), None, texts)
    try:
        found = _compute.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        for index, value in enumerate(column.to_pylist()):
            as_number(value, name, place, index)
        raise UserError(
            f"{place(0)}: {name!r} is a column of {column.type}, not numbers."
        ) from None
    return np.array(_compute.fill_null(found, np.nan).to_numpy(), np.float64)
