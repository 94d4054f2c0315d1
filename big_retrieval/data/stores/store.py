"""A store: rows of users' files in memory-mapped Arrow parts."""

import bisect
import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import Record
from big_retrieval.data.stores.values import Pointer, StoredColumn, header_digest, is_json
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.handles import RandomAccessFile

INFO = "store.json"
HEADER = 512  # bytes of a member's header in a tar file, directly before its content
ORIGIN_COLUMNS = ("file", "place", "reason")  # the first columns of every part, by position


class Store(Table):
    """Rows of some files, in their order.

    Attributes:
      folder: contains store.json and the parts.
      columns: all columns that at least one row has.
      fingerprint: digest of all rows: values, types, and the row counts of the parts. Copies of the
        files have the same fingerprint. Equal rows in another format, or in row groups of another
        size, may have another fingerprint, because they may be divided into other parts.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            info = json.loads((folder / INFO).read_bytes())
            self._parts = [_Part(folder / name) for name in info["parts"]]
        except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
            raise UserError(
                f"Cannot read the store {folder} ({error}). Remove it to read the files again."
            ) from None
        self.name, self.fingerprint = info["name"], info["fingerprint"]
        self.damaged, self._unit, self._key = info["damaged"], info["unit"], info["key"]
        self.notes: list[str] = info.get("notes", [])
        self._files = [path for path, *_ in info["files"]]
        self._stamps = [(size, changed) for _, size, changed, _ in info["files"]]
        self._ends = list(itertools.accumulate(part.rows for part in self._parts))
        self.names = tuple(dict.fromkeys(name for part in self._parts for name in part.names))
        self.columns = frozenset(self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.folder,)

    def __len__(self) -> int:
        return self._ends[-1]

    def _find(self, index: int) -> "tuple[_Part, int]":
        part_index = bisect.bisect_right(self._ends, index)
        return self._parts[part_index], index - (self._ends[part_index - 1] if part_index else 0)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Returns the values of a row, without null values and missing columns."""
        part, inner = self._find(index)
        if part.has_damaged and (reason := part.origin["reason"][inner]) is not None:
            raise Damaged(self.place(index), reason)
        names = part.names if columns is None else [name for name in columns if name in part.names]
        row: Record = {}
        try:
            for name in names:
                value = part.names[name][inner]
                if isinstance(value, Pointer):
                    value = self._content(value, part.origin["file"][inner], index)
                if value is not None:
                    row[name] = value
        except RecursionError:
            raise Damaged(self.place(index), "JSON that is nested too deeply") from None
        except (ValueError, OverflowError) as error:  # such as a date outside the range of Python
            raise Damaged(self.place(index), f"a value that cannot be read ({error})") from None
        return row

    def _content(self, pointer: Pointer, file: int, index: int) -> bytes:
        source = RandomAccessFile(Path(self._files[file]), self._stamps[file])
        start, stop = pointer.start - HEADER, pointer.start + pointer.length
        content = source.read(start, stop)
        if header_digest(content[:HEADER]) != pointer.check or len(content) < stop - start:
            raise Damaged(self.place(index), f"{self._files[file]} is not the file that was read")
        return content[HEADER:]

    def place(self, index: int) -> str:
        """Returns the location of a row: `pairs.csv, line 9`, or with its id `a.json, row 'd9'`."""
        part, inner = self._find(index)
        file, place = part.origin["file"][inner], part.origin["place"][inner]
        has_key = self._key and self._key in part.names  # a column may have no name
        key = part.names[self._key][inner] if has_key else None
        return f"{self._files[file]}, {self._unit} {place if key is None else repr(key)}"

    def first_damaged(self) -> str:
        """Returns location and reason of the first row that cannot be read; there must be one."""
        start = 0
        for part in self._parts:
            for inner in range(part.rows if part.has_damaged else 0):
                if (reason := part.origin["reason"][inner]) is not None:
                    return f"{self.place(start + inner)}: {reason}"
            start += part.rows
        raise AssertionError(f"{self.folder} has no damaged row")

    def column(self, name: str) -> pa.ChunkedArray | None:
        return None if self.damaged else self.values(name)

    def values(self, name: str) -> pa.ChunkedArray | None:
        """Returns the values of `column`, with null for damaged rows."""
        arrays = self.arrays(name)
        if len(arrays) < len(self._parts) or len({x.type for x in arrays}) > 1:
            return None
        return pa.chunked_array(arrays)

    def whole_rows(self) -> np.ndarray:
        """Returns the indices of the rows that can be read, int64 [n]."""
        return np.flatnonzero(~np.concatenate([part.is_damaged() for part in self._parts]))

    def arrays(self, name: str) -> list[pa.Array]:
        """Returns the arrays of a column in the parts that store texts or numbers there."""
        arrays = (part.array(name) for part in self._parts)
        return [array for array in arrays if array is not None]


class _Part:
    """Some consecutive rows of a store.

    Attributes:
      origin: the `ORIGIN_COLUMNS`, by name.
      names: the users' columns, by name.
    """

    def __init__(self, path: Path):
        with pa.memory_map(str(path)) as file:
            self._batch = pa.ipc.open_file(file).get_batch(0)
        self.rows, count = self._batch.num_rows, len(ORIGIN_COLUMNS)
        columns = [
            (field.name, StoredColumn(field, array))
            for field, array in zip(self._batch.schema, self._batch.columns, strict=True)
        ]
        self.origin = dict(zip(ORIGIN_COLUMNS, (column for _, column in columns), strict=False))
        self.names = dict(columns[count:])
        self.has_damaged = self._batch.column(2).null_count < self.rows

    def is_damaged(self) -> np.ndarray:
        """Returns True for rows that cannot be read, bool [rows]."""
        return self._batch.column(2).is_valid().to_numpy(zero_copy_only=False)

    def array(self, name: str) -> pa.Array | None:
        """Returns a column of texts or numbers; None for other types."""
        if name not in self.names:
            return None
        index = len(ORIGIN_COLUMNS) + list(self.names).index(name)
        field, array = self._batch.schema.field(index), self._batch.column(index)
        data_type = field.type
        is_content = pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type)
        return None if is_json(field) or is_content or pa.types.is_nested(data_type) else array
