"""The queries, or the documents, of judged pairs as sources, and what their columns are called."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import as_text, scan
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.judged.images import ImageColumn
from big_retrieval.data.sources import Record, as_texts
from big_retrieval.errors import Damaged, UserError


@dataclass(frozen=True)
class Names:
    """What the columns of a table are called in the records of the pairs.

    Attributes:
      pair: column of the pairs' file -> name; without those of the ids and the score.
      query: column of the queries' file -> name.
      document: column of the documents' file -> name.
    """

    pair: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, str] = field(default_factory=dict)


def name_columns(
    pair: Collection[str],
    query: Collection[str],
    document: Collection[str],
    taken: Collection[str],
) -> Names:
    """Names for all columns of a record, no two the same.

    Args:
      pair: columns of the pairs' file.
      query: columns of the queries' file.
      document: columns of the documents' file.
      taken: names of the ids, the score and the image.
    """
    query, document, taken = set(query), set(document), set(taken)
    both = query & document
    return Names(
        {x: f"pair.{x}" if x in taken | query | document else x for x in pair},
        {x: f"query.{x}" if x in taken | both else x for x in query},
        {x: f"document.{x}" if x in taken | both else x for x in document},
    )


class SideRecords:
    """The queries, or the documents: a source with a record for each.

    Records have the columns of the file under their own names, those that are called otherwise in
    the records of the pairs (`Names`) under that name, too; the id, as text; and `image` where
    there are images. A text or an image that is missing is None.

    Args:
      table: has a row for each.
      rows: which, int64 [n].
      key: the table's column of ids.
      id_column: what it is called in records.
      columns: those that are shown, with their names in the records of the pairs.
      texts: of these, the ones with texts; the id may be one.
      image: the column of images; None: there are none.
      name: the source's.
    """

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        table: Table,
        rows: np.ndarray,
        *,
        key: str,
        id_column: str,
        columns: Mapping[str, str],
        texts: Sequence[str],
        name: str,
        image: ImageColumn | None = None,
    ):
        self.name = name
        self._table, self._rows, self._key, self.id_column = table, rows, key, id_column
        self._columns = {name: column for column, name in columns.items()}  # as asked for -> own
        self._columns |= {column: column for column in columns}
        self._texts, self._image = tuple(texts), image

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        row = self.row(index)
        record: Record = {name: row.get(own) for name, own in self._columns.items()}
        record |= self.basics(row, index)
        record.setdefault("id", record[self.id_column])
        return record

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the file that records have, by its own names, without ids and images."""
        return tuple(sorted(set(self._columns.values())))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of texts that these records have."""
        return tuple(x for x in self._texts if x == self.id_column or x in self._columns)

    def file(self) -> Table:
        """The rows of the file that the records are made of, in their order."""
        return View(self._table, self._rows)

    def row(self, index: int, *, bare: bool = False) -> Record:
        """The row of the table; `bare`: only what `basics` needs."""
        image = () if self._image is None else (self._image.column,)
        return self._row(index, (self._key, *image) if bare else None)

    def basics(self, row: Record, index: int) -> Record:
        """The id of a row, and its image where there are images (None: this row has none).

        Raises:
          Damaged: the image cannot be read.
        """
        found: Record = {self.id_column: as_text(row.get(self._key))}
        if self._image is not None:
            found[IMAGE] = self._image.of(row, self.place(index))
        return found

    def id(self, index: int) -> str:
        """The id of a record."""
        return as_text(self._row(index, (self._key,)).get(self._key)) or ""

    def ids(self) -> pa.Array:
        """The ids of all records, in their order: Arrow texts [n]."""
        return scan(self.file(), (self._key,)).texts[self._key]

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one record; opens no image.

        Raises:
          Damaged: it has none.
          UserError: no record has such a column.
        """
        return as_texts(self.value(index, column), column, self.place(index))

    def value(self, index: int, column: str) -> Any:
        """One value of a record; opens no image. None where the record lacks it.

        Raises:
          UserError: no record has such a column.
        """
        if column == self.id_column or (column == "id" and column not in self._columns):
            return self.id(index)
        if column not in self._columns:
            known = ", ".join(sorted({*self._columns, self.id_column}))
            raise UserError(f"{self.name}: records have no column {column!r}; they have {known}.")
        own = self._columns[column]
        return self._row(index, (own,)).get(own)

    def place(self, index: int) -> str:
        """Where a record stands, for messages."""
        return self._table.place(int(self._rows[index]))

    def captions(self) -> Iterator[str]:
        """The texts of all records, in order; opens no image."""
        for index in range(len(self) if self.text_columns else 0):
            for column in self.text_columns:
                try:
                    yield from self.texts(index, column)
                except Damaged:
                    continue

    def _row(self, index: int, columns: Collection[str] | None = None) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")
        return self._table.row(int(self._rows[index]), columns)
