"""Whole columns of a table as compact arrays: ids as Arrow texts, scores as numbers."""

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

BLOCK = 65536  # rows in memory as Python objects at a time
TEXT = pa.large_string()  # ids and titles of a data set may exceed 2 GiB
_compute: Any = pc  # pyarrow generates its functions at import; type checkers miss them


@dataclass(frozen=True)
class Scan:
    """Columns of all rows.

    Attributes:
      texts: Arrow texts [n] by name; null if a row has no value (`sources.is_absent`).
      numbers: float64 [n] by name; NaN if a row has no value.
      columns: all columns of the table.
    """

    texts: dict[str, pa.Array]
    numbers: dict[str, np.ndarray]
    columns: frozenset[str]


def scan(table: Table, texts: Collection[str], numbers: Collection[str] = ()) -> Scan:
    """Reads columns of all rows of a table.

    Args:
      texts: columns to read as texts; numbers become texts, 5.0 becomes "5".
      numbers: columns to read as numbers, which may be texts in the table.
    """
    arrays: dict[str, Any] = {name: table.column(name) for name in (*texts, *numbers)}
    for name in texts:
        if arrays[name] is not None and not _is_text_or_integer(arrays[name].type):
            arrays[name] = None  # Arrow and `as_text` format them differently
    by_row = [name for name, array in arrays.items() if array is None]
    columns, blocks = set(table.columns or ()), {name: [] for name in by_row}
    for start in range(0, len(table) if by_row else 0, BLOCK):
        rows = [table.row(i, by_row) for i in range(start, min(start + BLOCK, len(table)))]
        columns.update(*rows)
        for name in by_row:
            values = [row.get(name) for row in rows]
            if name in texts:
                block = pa.array(map(as_text, values), TEXT)
            else:
                pairs = enumerate(values, start)
                block = pa.array([as_number(x, name, table.place, i) for i, x in pairs])
            blocks[name].append(block)
    for name, parts in blocks.items():
        arrays[name] = pa.chunked_array(parts, TEXT if name in texts else pa.float64())
    return Scan(
        {name: _arrow_texts(arrays[name]) for name in texts},
        {name: _arrow_numbers(arrays[name], name, table.place) for name in numbers},
        frozenset(columns),
    )


def as_text(value: Any) -> str | None:
    """Converts a value to text; returns None for an absent one."""
    if is_absent(value):
        return None
    if isinstance(value, str | bytes):
        return as_utf8(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return as_utf8(json.dumps(value) if isinstance(value, list | dict) else str(value))


def encode(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Returns codes int32 [n] of texts [n] without null, and the distinct texts [k].

    A code is the index of a distinct text. Distinct texts are ordered by first occurrence.
    """
    encoded = _one_chunk(texts.dictionary_encode())
    return np.asarray(encoded.indices, np.int32), encoded.dictionary


def match(texts: pa.Array, distinct: pa.Array) -> np.ndarray:
    """Returns the index of each text in `distinct`, int64 [n]; -1 for an unknown text."""
    indices = _compute.index_in(texts, value_set=distinct)
    return np.asarray(_compute.fill_null(indices, -1), np.int64)


def first_duplicate(texts: pa.Array) -> tuple[int, int] | None:
    """Returns the first row that repeats a text, and the earlier row; None if texts are unique."""
    codes, distinct = encode(texts)
    if len(distinct) == len(codes):
        return None
    later = int(np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1])[0]) + 1
    return later, int(np.flatnonzero(codes == codes[later])[0])


def check_ids(
    ids: pa.Array, column: str, place: Callable[[int], str], remedy: str = "keep one of them"
) -> None:
    """Raises a UserError for the first missing (null) or duplicate id of Arrow texts [n]."""
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
    """Finds rows by unique keys (Arrow texts [n] without null): sorted keys, and 8 bytes each."""

    def __init__(self, keys: pa.Array):
        order = _compute.array_sort_indices(keys)
        self._rows = np.asarray(order).astype(np.int64)  # [n]
        self._sorted: Any = keys.take(order)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: str) -> int | None:
        """Returns the row of a key, or None."""
        index = bisect.bisect_left(self._sorted, key, key=lambda value: value.as_py())
        if index == len(self) or self._sorted[index].as_py() != key:
            return None
        return int(self._rows[index])


def as_number(value: Any, name: str, place: Callable[[int], str], index: int) -> float:
    """Converts a number or its text to float; returns NaN for an absent value."""
    if is_absent(value):
        return float("nan")
    try:
        return float(value)
    except OverflowError:  # an integer in JSON may have any number of digits
        raise UserError(f"{place(index)}: {name!r} is {value!r:.60}, which is too large.") from None
    except (TypeError, ValueError):
        raise UserError(f"{place(index)}: {name!r} is {value!r:.60}, not a number.") from None


def _one_chunk(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is_text_or_integer(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), TEXT) or pa.types.is_integer(data_type)


def _arrow_texts(column: Any) -> pa.Array:
    texts = _one_chunk(_compute.cast(column, TEXT))
    blank = _compute.equal(_compute.utf8_trim_whitespace(texts), "")
    return _compute.if_else(blank, pa.scalar(None, TEXT), texts)


def _arrow_numbers(column: Any, name: str, place: Callable[[int], str]) -> np.ndarray:
    if column.type in (pa.string(), TEXT):
        texts = _compute.utf8_trim_whitespace(column)
        column = _compute.if_else(_compute.equal(texts, ""), None, texts)
    try:
        numbers = _compute.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        for index, value in enumerate(column.to_pylist()):
            as_number(value, name, place, index)
        raise UserError(f"{place(0)}: {name!r} has the type {column.type}.") from None
    return np.array(_compute.fill_null(numbers, np.nan).to_numpy(), np.float64)
