"""Whole columns of a table, as compact arrays: ids as Arrow texts, scores as numbers.

Tables that hold their columns give them at once; of others every row is
read, in blocks, so that millions of rows are never held as Python objects.
"""

import bisect
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

BLOCK = 65536  # rows that are held at a time
TEXT = pa.large_string()  # ids and titles of a data set may exceed 2 GiB
_compute: Any = pc  # its functions are made when it is imported, which types cannot see


@dataclass(frozen=True)
class Scan:
    """Columns of all rows.

    Attributes:
      texts: name -> Arrow texts [n]; null where a row has nothing there (`sources.is_absent`).
      numbers: name -> float64 [n]; NaN where a row has nothing there.
    """

    texts: dict[str, pa.Array]
    numbers: dict[str, np.ndarray]
    columns: frozenset[str]


def scan(table: Table, texts: Collection[str], numbers: Collection[str] = ()) -> Scan:
    """Reads columns of all rows of a table.

    Args:
      texts: columns that are read as texts; numbers are written out, 5.0 as "5".
      numbers: columns that are read as numbers, which may be written as texts.

    Raises:
      UserError: a row that cannot be read, or a value that is no number, named by its place.
    """
    held: dict[str, Any] = {name: table.column(name) for name in (*texts, *numbers)}
    for name in texts:
        if held[name] is not None and not _is_text_or_integer(held[name].type):
            held[name] = None  # Arrow writes them in another way than `as_text`
    by_row = [name for name, found in held.items() if found is None]
    known, blocks = set(table.columns or ()), {name: [] for name in by_row}
    for start in range(0, len(table) if by_row else 0, BLOCK):
        rows = [table.row(i, by_row) for i in range(start, min(start + BLOCK, len(table)))]
        known.update(*rows)
        for name in by_row:
            values = [row.get(name) for row in rows]
            if name in texts:
                block = pa.array(map(as_text, values), TEXT)
            else:
                found = [as_number(x, name, table.place, start + i) for i, x in enumerate(values)]
                block = pa.array(found, pa.float64())
            blocks[name].append(block)
    for name, parts in blocks.items():
        held[name] = pa.chunked_array(parts, TEXT if name in texts else pa.float64())
    made = {name: _arrow_texts(held[name]) for name in texts}
    counts = {name: _arrow_numbers(held[name], name, table.place) for name in numbers}
    return Scan(made, counts, frozenset(known))


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


def first_duplicate(texts: pa.Array) -> tuple[int, int] | None:
    """The first text that an earlier row has: (its row, the earlier row); None: all differ."""
    codes, different = encode(texts)
    if len(different) == len(codes):
        return None
    later = int(np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1])[0]) + 1
    return later, int(np.flatnonzero(codes == codes[later])[0])


def check_ids(
    ids: pa.Array, column: str, place: Callable[[int], str], remedy: str = "keep one of them"
) -> None:
    """Checks that every row has an id of its own.

    Args:
      ids: Arrow texts [n], null where a row has none.
      remedy: what to do about an id that two rows have.

    Raises:
      UserError: names the first such row, or the first two rows with the same id.
    """
    if ids.null_count:
        first = int(np.flatnonzero(np.asarray(ids.is_null()))[0])
        raise UserError(f"{place(first)}: there is no {column!r}; give every row its id.")
    duplicate = first_duplicate(ids)
    if duplicate is not None:
        later, earlier = duplicate
        value = ids[later].as_py()
        raise UserError(
            f"{place(later)}: {column} {value!r} is there already ({place(earlier)}); {remedy}."
        )


class Keys:
    """Which row has a key; holds the keys once, sorted, and 8 bytes for each.

    Args:
      keys: Arrow texts [n], without null and without duplicates.
    """

    def __init__(self, keys: pa.Array):
        order = _compute.array_sort_indices(keys)
        self._rows = np.asarray(order).astype(np.int64)  # [n]
        self._sorted: Any = keys.take(order)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: str) -> int | None:
        """The row of a key."""
        place = bisect.bisect_left(self._sorted, key, key=lambda each: each.as_py())
        if place == len(self) or self._sorted[place].as_py() != key:
            return None
        return int(self._rows[place])


def as_number(value: Any, name: str, place: Callable[[int], str], index: int) -> float:
    """A number, perhaps written as text; NaN where there is none.

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


def _is_text_or_integer(kind: pa.DataType) -> bool:
    return kind in (pa.string(), TEXT) or pa.types.is_integer(kind)


def _arrow_texts(column: Any) -> pa.Array:
    """A column of Arrow's as `Scan.texts` says."""
    texts = _joined(_compute.cast(column, TEXT))
    blank = _compute.equal(_compute.utf8_trim_whitespace(texts), "")
    return _compute.if_else(blank, pa.scalar(None, TEXT), texts)


def _arrow_numbers(column: Any, name: str, place: Callable[[int], str]) -> np.ndarray:
    """A column of Arrow's as `Scan.numbers` says."""
    if column.type in (pa.string(), TEXT):
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
