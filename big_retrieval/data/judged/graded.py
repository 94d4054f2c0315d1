"""Judged pairs as a source; their queries and documents are sources, too.

A record has the columns of its pair, query and document. Ids are texts. If the files of queries and
documents share a column, it becomes `query.<name>` and `document.<name>`. If the pairs' file shares
a column with one of them, the pairs' column becomes `pair.<name>`.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import as_text, scan
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table, combined_digest
from big_retrieval.data.formats.views import View
from big_retrieval.data.judged.images import ImageColumn
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.sources import Record, RecordSource, column_of
from big_retrieval.errors import Damaged, UserError


@dataclass(frozen=True)
class Names:
    """Mappings from columns of each file to names in the records of the pairs.

    `pair` does not contain the ids and the score.
    """

    pair: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, str] = field(default_factory=dict)


class SideRecords(RecordSource):
    """The queries or the documents of judged pairs.

    Each column has two names in records: the name in the file and the name in the records of the
    pairs (`Names`). Records also have the id as text, and `image` if there are images. A missing
    text or image is None.

    Args:
      rows: rows of the records, int64 [n].
      key: the table's column of ids.
      id_column: name of the id in records.
      columns: columns of the table -> names in the records of the pairs.
      texts: columns of texts; the id may be one of them.
      image: None for no images.

    Attributes:
      file: rows of the records, in their order.
      columns: columns of the file in records, without ids and images.
    """

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
        self.name, self.id_column = name, id_column
        self.file = View(table, rows)
        self._key, self._image = key, image
        self._columns = {name: column for column, name in columns.items()}  # name -> column
        self._columns |= {column: column for column in columns}
        self.columns = tuple(sorted(columns))
        self.text_columns = tuple(x for x in texts if x == id_column or x in self._columns)

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, index: int) -> Record:
        record = self.columns_of(index, self._columns)
        return {"id": record[self.id_column], **record}

    def columns_of(self, index: int, names: Mapping[str, str]) -> Record:
        """Returns columns of a record, its id, and its image if there are images.

        Args:
          names: name -> column of the file; may be empty.
        """
        self.check_index(index)
        image = () if self._image is None else (self._image.column,)
        row = self.file.row(index, None if names else (self._key, *image))
        record: Record = {name: row.get(column) for name, column in names.items()}
        record[self.id_column] = as_text(row.get(self._key))
        if self._image is not None:
            record[IMAGE] = self._image.image_of(row, self.place(index))
        return record

    def id(self, index: int) -> str:
        """Returns the id of a record."""
        return as_text(self.file.row(index, (self._key,)).get(self._key)) or ""

    def ids(self) -> pa.Array:
        """Returns the ids of all records in their order, Arrow texts [n]."""
        return scan(self.file, (self._key,)).texts[self._key]

    def value(self, index: int, column: str) -> Any:
        self.check_index(index)
        if column == self.id_column or (column == "id" and column not in self._columns):
            return self.id(index)
        file_column = column_of({self.id_column: "", **self._columns}, column, self.name)
        return self.file.row(index, (file_column,)).get(file_column)

    def place(self, index: int) -> str:
        return self.file.place(index)

    @property
    def fingerprint(self) -> str:
        return self.file.fingerprint

    def captions(self) -> Iterator[str]:
        for index in range(len(self) if self.text_columns else 0):
            for column in self.text_columns:
                with contextlib.suppress(Damaged):
                    yield from self.texts(index, column)


class GradedPairs(RecordSource):
    """Judged pairs: records of their columns, the ids as texts, and the score as float.

    Args:
      queries: a record per judged query.
      documents: a record per document, judged or not.
      score: name of the score in records.
      file: rows of the pairs' file; None if pairs have no further columns.
      notes: messages on skipped pairs.
    """

    def __init__(
        self,
        queries: SideRecords,
        documents: SideRecords,
        qrels: Qrels,
        *,
        names: Names,
        score: str,
        name: str,
        file: View | None = None,
        notes: Sequence[str] = (),
    ):
        self.name, self.names, self.file, self.notes = name, names, file, tuple(notes)
        self.queries, self.documents, self.qrels = queries, documents, qrels
        self._score = score
        self._by_name = [
            {name: column for column, name in columns.items()}
            for columns in (names.pair, names.query, names.document)
        ]

    def __len__(self) -> int:
        return len(self.qrels)

    def __getitem__(self, index: int) -> Record:
        query, document = self._sides(index)
        pair_columns, query_columns, document_columns = self._by_name
        pair = self._pair(index, self.names.pair)
        record: Record = {name: pair.get(column) for name, column in pair_columns.items()}
        record |= self.queries.columns_of(query, query_columns)
        record |= self.documents.columns_of(document, document_columns)
        record[self._score] = float(self.qrels.score[index])
        record.setdefault("id", f"{self.name}-{index:06d}")
        return record

    def value(self, index: int, column: str) -> Any:
        query, document = self._sides(index)
        pair_columns, query_columns, document_columns = self._by_name
        if column == self._score:
            return float(self.qrels.score[index])
        if column == self.queries.id_column or column in query_columns:
            return self.queries.value(query, query_columns.get(column, column))
        if column == self.documents.id_column or column in document_columns:
            return self.documents.value(document, document_columns.get(column, column))
        if column in pair_columns:
            return self._pair(index, (pair_columns[column],)).get(pair_columns[column])
        ids = (self._score, self.queries.id_column, self.documents.id_column)
        names = ", ".join(sorted({*pair_columns, *query_columns, *document_columns, *ids}))
        raise UserError(f"{self.name}: pairs have no column {column!r}; they have {names}.")

    def place(self, index: int) -> str:
        return f"{self.name}, pair {index}" if self.file is None else self.file.place(index)

    @property
    def fingerprint(self) -> str:
        files = (self.queries.file, self.documents.file, self.file)
        pairs = (self.qrels.query, self.qrels.document, self.qrels.score, *self.qrels.missing)
        return combined_digest((x.fingerprint for x in files if x is not None), *pairs)

    def captions(self) -> Iterator[str]:
        yield from self.queries.captions()
        yield from self.documents.captions()

    def _sides(self, index: int) -> tuple[int, int]:
        self.check_index(index)
        return int(self.qrels.query[index]), int(self.qrels.document[index])

    def _pair(self, index: int, columns: Collection[str]) -> Record:
        return {} if self.file is None or not columns else self.file.row(index, columns)
