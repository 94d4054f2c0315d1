"""Judged pairs as a source, and the queries and documents that they are of as sources of their own.

A record of the pairs has the columns of its row in the pairs' file, of its query and of its
document. Ids are texts, whatever they are in the files. Columns keep their names but where two mean
different things: of one that queries and documents have, records know `query.<name>` and
`document.<name>`; of one that the pairs' file and another have, the other's, and `pair.<name>`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from big_retrieval.data.files.columns import as_text
from big_retrieval.data.files.picked import Picked
from big_retrieval.data.files.tables import Table
from big_retrieval.data.graded_images import ImageColumn
from big_retrieval.data.judgements import Judgements
from big_retrieval.data.records import IMAGE
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


class Side:
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
        return Picked(self._table, self._rows)

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


class GradedPairs:
    """Judged pairs.

    Records have the columns of the pair's row, of its query and of its document; the ids, as texts,
    and the score, as a number, under the names that the configuration has for them.

    Args:
      queries: a record for each judged query.
      documents: a record for each document, judged or not.
      judgements: the pairs, by the numbers of both.
      names: what columns are called.
      score: the name of the score.
      table: the pairs' file; None: pairs have no columns of their own.
      rows: the row of each pair in it, int64 [n].
      name: the source's.
      notes: what was left out, with its number, a sentence each.
    """

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        queries: Side,
        documents: Side,
        judgements: Judgements,
        *,
        names: Names,
        score: str,
        name: str,
        table: Table | None = None,
        rows: np.ndarray | None = None,
        notes: Sequence[str] = (),
    ):
        self.name, self.notes = name, tuple(notes)
        self.queries, self.documents, self.judgements = queries, documents, judgements
        self._names, self._score = names, score
        self._table, self._rows = table, rows
        self._found = {name: ("pair", own) for own, name in names.pair.items()}
        self._found |= {name: ("query", own) for own, name in names.query.items()}
        self._found |= {name: ("document", own) for own, name in names.document.items()}

    def __len__(self) -> int:
        return len(self.judgements)

    def __getitem__(self, index: int) -> Record:
        query, document = self._numbers(index)
        pair = self._pair(index, self._names.pair)
        record: Record = {name: pair.get(own) for own, name in self._names.pair.items()}
        for side, number, names in (
            (self.queries, query, self._names.query),
            (self.documents, document, self._names.document),
        ):
            row = side.row(number, bare=not names)
            record |= {name: row.get(own) for own, name in names.items()}
            record |= side.basics(row, number)
        record[self._score] = float(self.judgements.score[index])
        record.setdefault("id", f"{self.name}-{index:06d}")
        return record

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one pair; opens no image.

        Raises:
          Damaged: it has none.
          UserError: no pair has such a column.
        """
        return as_texts(self.value(index, column), column, self.place(index))

    def value(self, index: int, column: str) -> Any:
        """One value of a pair; opens no image. None where the pair lacks it.

        Raises:
          UserError: no pair has such a column.
        """
        query, document = self._numbers(index)
        if column == self._score:
            return float(self.judgements.score[index])
        if column == self.queries.id_column:
            return self.queries.id(query)
        if column == self.documents.id_column:
            return self.documents.id(document)
        if column not in self._found:
            own = (self._score, self.queries.id_column, self.documents.id_column)
            known = ", ".join(sorted({*self._found, *own}))
            raise UserError(f"{self.name}: pairs have no column {column!r}; they have {known}.")
        origin, own = self._found[column]
        if origin == "pair":
            return self._pair(index, (own,)).get(own)
        if origin == "query":
            return self.queries.value(query, own)
        return self.documents.value(document, own)

    def place(self, index: int) -> str:
        """Where a pair stands, for messages."""
        if self._table is None or self._rows is None:
            return f"{self.name}, pair {index}"
        return self._table.place(int(self._rows[index]))

    def captions(self) -> Iterator[str]:
        """The texts of all queries, then of all documents; opens no image."""
        yield from self.queries.captions()
        yield from self.documents.captions()

    @property
    def names(self) -> Names:
        """What columns are called in records."""
        return self._names

    def file(self) -> Table | None:
        """The rows of the pairs' file that the records are made of, in their order."""
        if self._table is None or self._rows is None:
            return None
        return Picked(self._table, self._rows)

    def _numbers(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")
        return int(self.judgements.query[index]), int(self.judgements.document[index])

    def _pair(self, index: int, columns: Collection[str]) -> Record:
        """Columns of a pair's own row."""
        if self._table is None or self._rows is None or not columns:
            return {}
        return self._table.row(int(self._rows[index]), columns)
