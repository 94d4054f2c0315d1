"""A store as a table: the rows of users' files from memory-mapped parts."""

import bisect
import functools
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
OWN_COLUMNS = ("file", "place", "reason")  # the first columns of every part, by position


class Store(Table):
    """Rows of some files, in their order.

    Attributes:
      folder: with store.json and the parts.
      columns: all columns that at least one row has.

    Raises:
      UserError: the folder is not a store.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            info = json.loads((folder / INFO).read_bytes())
            self._parts = [_Part(folder / name) for name in info["parts"]]
        except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
            raise UserError(
                f"{folder} is not a store that can be read ({error}). Remove it; it is made again."
            ) from None
        self.name, self._fingerprint = info["name"], info["fingerprint"]
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

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of all rows; equal for copies of the files, wherever and whenever they were read.

        It covers values, their types, and the numbers of rows in parts. Equal rows in another
        format, or in row groups of another size, may be cut into other parts.
        """
        return self._fingerprint

    def _find(self, index: int) -> "tuple[_Part, int]":
        number = bisect.bisect_right(self._ends, index)
        return self._parts[number], index - (self._ends[number - 1] if number else 0)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Returns the values of a row, without columns that it lacks or in which it has null."""
        part, inner = self._find(index)
        if part.has_damaged and (reason := part.own["reason"][inner]) is not None:
            raise Damaged(self.place(index), reason)
        names = part.names if columns is None else [name for name in columns if name in part.names]
        row: Record = {}
        try:
            for name in names:
                value = part.names[name][inner]
                if isinstance(value, Pointer):
                    value = self._content(value, part.own["file"][inner], index)
                if value is not None:
                    row[name] = value
        except RecursionError:
            raise Damaged(self.place(index), "JSON that is nested too deeply") from None
        except (ValueError, OverflowError) as error:  # such as a date that Python cannot hold
            raise Damaged(self.place(index), f"a value that cannot be read ({error})") from None
        return row

    def _content(self, pointer: Pointer, file: int, index: int) -> bytes:
        """Reads the bytes of a pointer."""
        source = RandomAccessFile(Path(self._files[file]), self._stamps[file])
        start, stop = pointer.start - HEADER, pointer.start + pointer.length
        content = source.read(start, stop)
        if header_digest(content[:HEADER]) != pointer.check or len(content) < stop - start:
            raise Damaged(self.place(index), f"{self._files[file]} is not the file that was read")
        return content[HEADER:]

    def place(self, index: int) -> str:
        """Returns the location of a row: `pairs.csv, line 9`, or with its id `a.json, row 'd9'`."""
        part, inner = self._find(index)
        file, place = part.own["file"][inner], part.own["place"][inner]
        has_key = self._key and self._key in part.names  # a column may have no name
        key = part.names[self._key][inner] if has_key else None
        return f"{self._files[file]}, {self._unit} {place if key is None else repr(key)}"

    def first_damaged(self) -> str:
        """Returns location and reason of the first row that cannot be read."""
        start = 0
        for part in self._parts:
            for inner in range(part.rows if part.has_damaged else 0):
                if (reason := part.own["reason"][inner]) is not None:
                    return f"{self.place(start + inner)}: {reason}"
            start += part.rows
        raise UserError(f"{self.folder} has no damaged row.")

    def column(self, name: str) -> pa.ChunkedArray | None:
        """Returns the values of all rows of a column of one type, without a copy; else None."""
        return None if self.damaged else self.values(name)

    def values(self, name: str) -> pa.ChunkedArray | None:
        """Returns the values of `column`, and null for damaged rows."""
        arrays = self.arrays(name)
        if len(arrays) < len(self._parts) or len({x.type for x in arrays}) > 1:
            return None
        return pa.chunked_array(arrays)

    def whole_rows(self) -> np.ndarray:
        """Returns the indices of the rows that can be read, int64 [n]."""
        is_damaged = np.concatenate([part.is_damaged() for part in self._parts])
        return np.flatnonzero(~is_damaged)

    def arrays(self, name: str) -> list[pa.Array]:
        """Returns the values of a column in the parts that have texts or numbers there."""
        arrays = (part.array(name) for part in self._parts)
        return [array for array in arrays if array is not None]


class _Part:
    """Some consecutive rows of a store.

    Attributes:
      own: name -> column, of `OWN_COLUMNS`.
      names: name -> column, of the users' columns.
    """

    def __init__(self, path: Path):
        with pa.memory_map(str(path)) as file:
            self._batch = pa.ipc.open_file(file).get_batch(0)
        self.rows, count = self._batch.num_rows, len(OWN_COLUMNS)
        columns = [
            (field.name, StoredColumn(field, array))
            for field, array in zip(self._batch.schema, self._batch.columns, strict=True)
        ]
        self.own = dict(zip(OWN_COLUMNS, (column for _, column in columns), strict=False))
        self.names = dict(columns[count:])
        self.has_damaged = self._batch.column(2).null_count < self.rows

    def is_damaged(self) -> np.ndarray:
        """Returns True for rows that cannot be read, bool [rows]."""
        return self._batch.column(2).is_valid().to_numpy(zero_copy_only=False)

    def array(self, name: str) -> pa.Array | None:
        """Returns a column of texts or numbers; None for another one."""
        if name not in self.names:
            return None
        index = len(OWN_COLUMNS) + list(self.names).index(name)
        field, array = self._batch.schema.field(index), self._batch.column(index)
        kind = field.type
        is_content = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)  # read one by one
        return None if is_json(field) or is_content or pa.types.is_nested(kind) else array
