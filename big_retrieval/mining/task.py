"""Task of mining: queries, documents, and the relevant documents of each query."""

import itertools
from collections import defaultdict
from collections.abc import Collection as AnyOf
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Beir, Config, Dpr, TextField
from big_retrieval.config.sources import Source
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.fields.contents import text_key
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Chain, Rows, Table
from big_retrieval.data.formats.views import renamed
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.judged.qrels import DuplicatePolicy
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.passages.published import has_titles
from big_retrieval.data.sources import RecordSource, is_absent, value_of
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.rankings import id_of

NEGATIVES, ANSWERS = "negatives", "answers"  # columns


@dataclass(frozen=True)
class Task:
    """Queries and documents, by index.

    Attributes:
      positives: relevant documents of each query, best first.
      query, document: readers of the texts of each side.
      judged: True if a query and a document with one id are the same, as in BEIR's ArguAna.
    """

    queries: RecordSource
    documents: RecordSource
    positives: Sequence[Sequence[int]]
    query: FieldReader
    document: FieldReader
    judged: bool = False

    def text(self, document: int) -> tuple[str, str]:
        """Returns title and text of a document; empty if missing."""
        try:
            text = source_texts(self.documents, document, self.document)[0]
        except Damaged:
            return "", ""
        return ("", text) if isinstance(text, str) else text

    def whole_text(self, document: int) -> str:
        """Returns title and text of a document, joined."""
        return " ".join(self.text(document))

    def question(self, query: int) -> str:
        """Returns the text of a query, with its title if it has one; empty if missing."""
        try:
            return as_one(source_texts(self.queries, query, self.query)[0])
        except Damaged:
            return ""

    def answers(self, query: int) -> tuple[str, ...]:
        """Returns the known answers to a query."""
        return _answers_of(self.queries, query)

    def document_id(self, document: int) -> str:
        """Returns the id of a document."""
        return id_of(self.documents, document)

    def itself(self, query: int, document: int) -> bool:
        """Returns True if a document has the query's text, or in judged data its id."""
        has_ids = all(hasattr(source, "id") for source in (self.queries, self.documents))
        if self.judged and has_ids and id_of(self.queries, query) == self.document_id(document):
            return True
        texts = self.question(query), self.text(document)[1], self.whole_text(document)
        question, *keys = (normalize_text(text, ignore_case=True) for text in texts)
        return question in keys

    @cached_property
    def positives_of_text(self) -> Sequence[AnyOf[int]]:
        """Relevant documents of each query and of all other queries with its text."""
        by_text: defaultdict[str, set[int]] = defaultdict(set)
        keys = []
        for query, positives in enumerate(self.positives):
            keys.append(normalize_text(self.question(query), ignore_case=True))
            by_text[keys[-1]].update(positives)
        return [by_text[key] for key in keys]


def source_of_path(path: str, split: str, duplicates: DuplicatePolicy) -> Source:
    """Returns the source of a folder in BEIR's form, or of a file in DPR's form.

    Args:
      duplicates: policy for pairs that BEIR's qrels judge twice.
    """
    if Path(path).is_dir():
        return Beir(path=path, split=split, min_relevance=1, duplicates=duplicates)
    return Dpr(path=path, positive="any")


def config_of_texts(data: Source) -> Config:
    """Returns a config for data of `source_of_path`: a query field and a document field."""
    titled = not isinstance(data, Beir) or has_titles(Path(data.path))
    document = TextField(side="document", column="text", title="title" if titled else "")
    fields: Any = {"query": TextField(column="query"), "document": document}
    return Config(fields=fields, data=data)


def make_task(config: Config, data: Source, tokenizer: Any, documents: str | None) -> Task:
    """Returns the task of some data.

    A task has one text field per side: the config's first by name. Mined texts come from it.

    Args:
      documents: file with more documents, for data without qrels; None or empty for no file.
    """
    readers = make_readers(config, tokenizer)
    texts: list[FieldReader] = []
    for side in ("query", "document"):
        names = config.side(side, "text")
        if not names:
            raise UserError(f"config.fields has no text field on the {side} side. Add one.")
        texts.append(readers[min(names)])
    source = make_source(data)
    if not isinstance(source, GradedPairs):
        collection = Collection(documents) if documents else None
        return pairs_task(source, texts[0], texts[1], collection)
    if documents:
        raise UserError("Remove --documents: judged pairs have all their documents.")
    return judged_task(source, texts[0], texts[1])


def judged_task(source: GradedPairs, query: FieldReader, document: FieldReader) -> Task:
    """Returns the task of judged pairs: documents with a score above 0 are relevant."""
    count = len(source.queries)
    positives: list[Sequence[int]] = []
    for indices in source.qrels.blocks(np.arange(count)):
        documents, scores = source.qrels.for_queries(indices)  # [q, J] each
        positives += [
            row[(relevance > 0) & (row >= 0)].tolist()
            for row, relevance in zip(documents, scores, strict=True)
        ]
    return Task(source.queries, source.documents, positives, query, document, judged=True)


def pairs_task(
    source: RecordSource,
    query: FieldReader,
    document: FieldReader,
    collection: Collection | None = None,
) -> Task:
    """Returns the task of data without qrels: the documents of a query's records are relevant.

    Queries with the same text are one query. The documents are the collection, followed by the
    other documents of the records (positives and negatives), each text once.
    """
    pairs = _DistinctTexts(query, document)
    for index in range(len(source)):
        pairs.add(source, index)
    if not pairs.queries:
        raise UserError(f"{source.name} has no record with a query and a document.")
    rows = pairs.rows_in(collection)
    first = 0 if collection is None else len(collection)
    new = [text for text, row in zip(pairs.texts, rows, strict=True) if row >= first]
    column = document.field.title
    return Task(
        Records(Rows(pairs.queries, "queries"), image=(), text=""),
        Documents(
            collection,
            document,
            [{document.field.column: x} | ({column: title} if column else {}) for title, x in new],
        ),
        [[rows[text] for text in positives] for positives in pairs.positives],
        query,
        document,
    )


class _DistinctTexts:
    """Distinct queries and documents of records.

    Attributes:
      queries: rows with text, answers and id.
      positives: relevant documents of each query, as indices in `texts`.
      texts: title and text of every document.
    """

    def __init__(self, query: FieldReader, document: FieldReader):
        self._query, self._document = query, document
        self.queries: list[dict[str, Any]] = []
        self.positives: list[dict[int, None]] = []
        self.texts: list[tuple[str, str]] = []
        self._text_indices: dict[Hashable, int] = {}
        self._query_indices: dict[str, int] = {}

    def add(self, source: RecordSource, index: int) -> None:
        """Adds the texts of a record, unless it is damaged."""
        try:
            question = as_one(source_texts(source, index, self._query)[0])
            texts = source_texts(source, index, self._document)
            negatives = read_negatives(_value_or_none(source, index, NEGATIVES), NEGATIVES, "")
        except Damaged:
            return
        query = self._query_indices.setdefault(normalize_text(question), len(self.queries))
        if query == len(self.queries):
            row = {self._query.field.column: question, ANSWERS: [], "id": str(query)}
            self.queries.append(row)
            self.positives.append({})
        answers = self.queries[query][ANSWERS]
        answers += [answer for answer in _answers_of(source, index) if answer not in answers]
        pairs = [("", text) if isinstance(text, str) else text for text in texts]
        self.positives[query] |= dict.fromkeys(map(self._index_of, pairs))
        for item in negatives:
            self._index_of((item.title if self._document.field.title else "", item.text))

    def _index_of(self, text: tuple[str, str]) -> int:
        index = self._text_indices.setdefault(text_key(text), len(self.texts))
        if index == len(self.texts):
            self.texts.append(text)
        return index

    def rows_in(self, collection: Collection | None) -> list[int]:
        """Returns the row of each text in the collection; new texts get rows after its end."""
        rows = [-1] * len(self.texts)
        for row in range(0 if collection is None else len(collection)):
            assert collection is not None
            try:
                document = collection.read(row)
            except Damaged:
                continue
            title = document["title"] if self._document.field.title else ""
            index = self._text_indices.get(text_key((title, document["text"])), -1)
            if index >= 0 and rows[index] < 0:
                rows[index] = row
        after = itertools.count(0 if collection is None else len(collection))
        return [next(after) if row < 0 else row for row in rows]


def as_one(text: Text) -> str:
    """Joins a title, if any, and a text."""
    return text if isinstance(text, str) else " ".join(filter(None, text))


def _answers_of(source: RecordSource, index: int) -> tuple[str, ...]:
    value = _value_or_none(source, index, ANSWERS)
    answers = [] if is_absent(value) else [value] if isinstance(value, str) else list(value)
    return tuple(map(str, answers))


def _value_or_none(source: RecordSource, index: int, column: str) -> Any:
    """Returns a value of a record; None if the record has no such column."""
    try:
        return value_of(source, index, column)
    except UserError:
        return None


class Documents(Records):
    """Documents of a collection, followed by the documents of records."""

    def __init__(
        self, collection: Collection | None, reader: FieldReader, rows: list[dict[str, Any]]
    ):
        self._ids = () if collection is None else collection.ids
        table: Table = Rows(rows, "documents")
        if collection is not None:
            title = reader.field.title
            names = {"text": reader.field.column} | ({"title": title} if title else {})
            first = renamed(collection.table, {x: y for x, y in names.items() if x != y})
            table = Chain([first, table], "documents") if rows else first
        super().__init__(table, image=(), text="", name="documents")

    def id(self, index: int) -> str:
        """Returns the id in the collection, or "own-INDEX" for the documents of records."""
        count = len(self._ids)
        return str(self._ids[index].as_py()) if index < count else f"own-{index - count}"
