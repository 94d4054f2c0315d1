"""Judged pairs as a source, and the queries and documents that they are of as sources of their own.

A record of the pairs has the columns of its row in the pairs' file, of its query and of its
document. Ids are texts, whatever they are in the files. Columns keep their names but where two mean
different things: of one that queries and documents have, records know `query.<name>` and
`document.<name>`; of one that the pairs' file and another have, the other's, and `pair.<name>`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.judged.sides import Names, SideRecords
from big_retrieval.data.sources import Record, as_texts
from big_retrieval.errors import UserError


class GradedPairs:
    """Judged pairs.

    Records have the columns of the pair's row, of its query and of its document; the ids, as texts,
    and the score, as a number, under the names that the configuration has for them.

    Args:
      queries: a record for each judged query.
      documents: a record for each document, judged or not.
      qrels: the pairs, by the numbers of both.
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
        queries: SideRecords,
        documents: SideRecords,
        qrels: Qrels,
        *,
        names: Names,
        score: str,
        name: str,
        table: Table | None = None,
        rows: np.ndarray | None = None,
        notes: Sequence[str] = (),
    ):
        self.name, self.notes = name, tuple(notes)
        self.queries, self.documents, self.qrels = queries, documents, qrels
        self._names, self._score = names, score
        self._table, self._rows = table, rows
        self._found = {name: ("pair", own) for own, name in names.pair.items()}
        self._found |= {name: ("query", own) for own, name in names.query.items()}
        self._found |= {name: ("document", own) for own, name in names.document.items()}

    def __len__(self) -> int:
        return len(self.qrels)

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
        record[self._score] = float(self.qrels.score[index])
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
            return float(self.qrels.score[index])
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
        return View(self._table, self._rows)

    def _numbers(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")
        return int(self.qrels.query[index]), int(self.qrels.document[index])

    def _pair(self, index: int, columns: Collection[str]) -> Record:
        """Columns of a pair's own row."""
        if self._table is None or self._rows is None or not columns:
            return {}
        return self._table.row(int(self._rows[index]), columns)
