"""Blocks: the rows that a reader yields, as columns, with the location of every row."""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError

BLOCK_ROWS = 8192
BLOCK_BYTES = 16 * 2**20
MOST_COLUMNS = 2000

# Values (empty if damaged), location, reason why the row cannot be read, and size in bytes.
FileRow = tuple[Record, int, str | None, int]


@dataclass(frozen=True)
class RowBlock:
    """Some consecutive rows of a file.

    Attributes:
      columns: name -> n values, None for a row without the column; or an Arrow array, whose type
        the store keeps.
      places: locations of the rows in the file, such as line numbers from 1, [n].
      reasons: why rows cannot be read, [n]; None for readable rows.
      size: number of bytes that were read.
      notes: messages about the file, such as its encoding. Every process that opens the store
        prints them.
    """

    columns: Mapping[str, Any]
    places: Sequence[int]
    reasons: Sequence[str | None]
    size: int
    notes: Sequence[str] = ()

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Types of the columns that are Arrow arrays."""
        return {name: x.type for name, x in self.columns.items() if isinstance(x, pa.Array)}

    @property
    def bytes_held(self) -> int:
        """Approximate size of the values in bytes."""
        arrays = (x for x in self.columns.values() if isinstance(x, pa.Array))
        return max(self.size, sum(array.nbytes for array in arrays))


@dataclass(frozen=True)
class Reader:
    """A file format.

    Attributes:
      read: yields the blocks of a file. Raises a UserError if the whole file has another format,
        and yields a reason for each row that cannot be read.
      unit: noun for the values of `RowBlock.places`, such as "line".
      key: column whose value identifies a row in messages, instead of its place; empty for none.
      copied_share: approximate number of bytes in the store per byte of the files; 0 if contents
        stay in the files.
      options: keyword arguments of `read`; part of the store's key.
      size_of: returns the total size of a file's blocks in bytes; None for the size of the file.
    """

    read: Callable[..., Iterator[RowBlock]]
    unit: str
    key: str = ""
    copied_share: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    size_of: Callable[[Path], int] | None = None

    def blocks(self, path: Path) -> Iterator[RowBlock]:
        """Yields the blocks of a file."""
        return self.read(path, **self.options)


def check_names(names: Collection[str], path: Path | str) -> None:
    """Raises a UserError if rows have so many different keys that columns would be mostly empty."""
    if len(names) > MOST_COLUMNS:
        raise UserError(
            f"{path}: its rows have more than {MOST_COLUMNS:,} different keys. Write them as a "
            'list of {"key": ..., "value": ...} in one column.'
        )


@dataclass
class RowBuffer:
    """Collects rows of a file until they fill a block."""

    path: Path
    rows: list[Record] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    size: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, row: Record, place: int, reason: str | None, size: int) -> None:
        """Adds a `FileRow`."""
        self.rows.append(row)
        self.places.append(place)
        self.reasons.append(reason)
        self.size += size

    def is_full(self) -> bool:
        """Returns True if the rows should be taken as a block."""
        return len(self.rows) >= BLOCK_ROWS or self.size >= BLOCK_BYTES

    def take(self) -> RowBlock:
        """Returns the rows as a block, and removes them."""
        names = dict.fromkeys(itertools.chain.from_iterable(self.rows))
        check_names(names, self.path)
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        block = RowBlock(columns, self.places, self.reasons, self.size, self.notes)
        self.rows, self.places, self.reasons, self.size, self.notes = [], [], [], 0, []
        return block


def in_blocks(read: Callable[..., Iterator[FileRow | str]]) -> Callable[..., Iterator[RowBlock]]:
    """Decorates a function of a path that yields rows and notes; the result yields blocks."""

    @functools.wraps(read)
    def blocks(path: Path, *args: Any, **options: Any) -> Iterator[RowBlock]:
        buffer = RowBuffer(path)
        for row in read(path, *args, **options):
            if isinstance(row, str):
                buffer.notes.append(row)
                continue
            buffer.add(*row)
            if buffer.is_full():
                yield buffer.take()
        yield buffer.take()

    return blocks
