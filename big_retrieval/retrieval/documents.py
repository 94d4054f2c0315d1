"""Documents and queries of files, in chunks: what is encoded, and what is shown of it."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from big_retrieval.data import open_files
from big_retrieval.data.files.columns import as_text
from big_retrieval.data.files.tables import check_columns
from big_retrieval.data.records import IMAGE, Records
from big_retrieval.data.sources import as_texts, is_absent
from big_retrieval.errors import Damaged, UserError

SHOWN = 120  # characters of a text that are kept to be shown
TRIES = 100  # records, none of which can be read, after which it is no use
NAMED = 3  # records left out that are named


@dataclass(frozen=True)
class Reader:
    """Which columns of a file are read.

    Attributes:
      what: "documents" or "queries", for messages.
      texts: field of the model -> the columns of its text, which are joined.
      images: field of the model -> the column of its image.
      id: the column of ids; "": `id` where there is one, else the file's name and a number.
      join: between the columns of a text.
    """

    what: str
    texts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    id: str = ""
    join: str = " "

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all fields."""
        return (*self.texts, *self.images)


@dataclass
class Chunk:
    """Some records.

    Attributes:
      ids: [n].
      values: field -> texts, or images as `encode_images` takes them, [n]; None: there is none.
      shown: the beginning of the first text of each, "" where there is none, [n].
    """

    ids: list[str]
    values: dict[str, list[Any]]
    shown: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, rows: set[int]) -> "Chunk":
        """The chunk without some of its rows."""
        keep = [row for row in range(len(self)) if row not in rows]
        values = {field: [found[row] for row in keep] for field, found in self.values.items()}
        return Chunk([self.ids[i] for i in keep], values, [self.shown[i] for i in keep])


class LeftOut:
    """Counts records that cannot be used, and names the first ones on standard error."""

    def __init__(self, what: str):
        self._what, self.count = what, 0

    def add(self, problem: Damaged) -> None:
        """Counts one."""
        self.count += 1
        if self.count <= NAMED:
            print(f"left out: {problem}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Says how many there were."""
        if self.count:
            print(f"{self.count:,} {self._what} left out", file=sys.stderr, flush=True)


def open_records(flag: str, patterns: str, reader: Reader) -> Records:
    """Opens the files of documents or queries.

    Args:
      flag: the name of the flag, for messages.
      patterns: paths, glob patterns or {00..99} ranges, separated by commas.
      reader: which columns are read.

    Raises:
      UserError: a file is missing, of no known kind or empty, or it lacks a column.
    """
    paths = []
    for pattern in patterns.split(","):
        found, lost = open_files.expand(pattern.strip())
        if lost:
            raise UserError(f"--{flag}: there is no file {lost[0]!r}; check the path.")
        paths += found
    table, _ = open_files.table_of(paths)
    columns = [column for each in reader.texts.values() for column in each]
    check_columns(table, [*columns, *filter(None, [reader.id])])
    image = tuple(dict.fromkeys(reader.images.values()))[:1]
    return Records(table, image=image, text="", root=paths[0].parent)


def read(records: Records, reader: Reader, size: int, left_out: LeftOut) -> Iterator[Chunk]:
    """Reads all records in order, `size` at a time; those that cannot be used are left out.

    Raises:
      UserError: none of the first ones can be used.
    """
    ids: list[str] = []
    values: dict[str, list[Any]] = {field: [] for field in reader.fields}
    shown: list[str] = []
    for index in range(len(records)):
        try:
            name, found = _row(records, reader, index)
        except Damaged as problem:
            left_out.add(problem)
            if left_out.count == index + 1 and index + 1 in (TRIES, len(records)):
                raise UserError(
                    f"none of the first {index + 1} {reader.what} can be used; the last of them: "
                    f"{problem}"
                ) from None
            continue
        ids.append(name)
        texts = [found[field] for field in reader.texts if found[field]]
        shown.append(" ".join(texts[0].split())[:SHOWN] if texts else "")
        for field, value in found.items():
            values[field].append(value)
        if len(ids) == size:
            yield Chunk(ids, values, shown)
            ids, shown, values = [], [], {field: [] for field in reader.fields}
    if ids:
        yield Chunk(ids, values, shown)


def _row(records: Records, reader: Reader, index: int) -> tuple[str, dict[str, Any]]:
    """The id and the fields of a record; None where a field is not there.

    Raises:
      Damaged: it has no id or none of the fields, or cannot be read.
    """
    place, row = records.place(index), records[index]
    name = as_text(row.get(reader.id or "id"))
    if name is None:
        raise Damaged(place, f"there is no id in {reader.id or 'id'!r}")
    found: dict[str, Any] = {}
    for field, columns in reader.texts.items():
        parts = [_text(row, column, place) for column in columns]
        found[field] = reader.join.join(filter(None, parts)) or None
    for field in reader.images:
        found[field] = row.get(IMAGE)
    if all(value is None for value in found.values()):
        columns = [*(c for each in reader.texts.values() for c in each), *reader.images.values()]
        known = ", ".join(sorted(row))
        raise Damaged(place, f"there is nothing in {', '.join(map(repr, columns))}; it has {known}")
    return name, found


def _text(row: Mapping[str, Any], column: str, place: str) -> str:
    """The text of a column, the first one where it has several; "" where there is none."""
    value = row.get(column)
    return "" if is_absent(value) else as_texts(value, column, place)[0]
