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
from big_retrieval.data.fields.contents import of_text
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
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
    """Queries and documents.

    Attributes:
      queries: a record per query.
      documents: a record per document.
      right: document indices of the relevant documents of each query, best first.
      query: reader of the queries' texts.
      document: reader of the documents' texts.
      judged: a query and a document with one id are the same, as in BEIR's ArguAna.
    """

    queries: RecordSource
    documents: RecordSource
    right: Sequence[Sequence[int]]
    query: FieldReader
    document: FieldReader
    judged: bool = False

    def text(self, number: int) -> tuple[str, str]:
        """Returns title and text of a document; empty if missing."""
        try:
            found = source_texts(self.documents, number, self.document)[0]
        except Damaged:
            return "", ""
        return ("", found) if isinstance(found, str) else found

    def whole_text(self, number: int) -> str:
        """Returns title and text of a document, joined."""
        return " ".join(self.text(number))

    def question(self, number: int) -> str:
        """Returns the text of a query, with its title if it has one; empty if missing."""
        try:
            found = source_texts(self.queries, number, self.query)[0]
        except Damaged:
            return ""
        return found if isinstance(found, str) else " ".join(filter(None, found))

    def answers(self, number: int) -> tuple[str, ...]:
        """Returns the known answers to a query."""
        return _answers(self.queries, number)

    def document_id(self, number: int) -> str:
        """Returns the id of a document."""
        return id_of(self.documents, number)

    def itself(self, query: int, document: int) -> bool:
        """Returns True if a document has the query's text, or in judged data its id."""
        known = all(hasattr(source, "id") for source in (self.queries, self.documents))
        if self.judged and known and id_of(self.queries, query) == self.document_id(document):
            return True
        texts = self.question(query), self.text(document)[1], self.whole_text(document)
        question, *keys = (normalize_text(text, ignore_case=True) for text in texts)
        return question in keys

    @cached_property
    def right_of_text(self) -> Sequence[AnyOf[int]]:
        """Relevant documents of each query and of all other queries with its text."""
        by_text: defaultdict[str, set[int]] = defaultdict(set)
        keys = []
        for number, right in enumerate(self.right):
            keys.append(normalize_text(self.question(number), ignore_case=True))
            by_text[keys[-1]].update(right)
        return [by_text[key] for key in keys]


def source_of_path(path: str, split: str, duplicates: DuplicatePolicy) -> Source:
    """Returns the source of a folder in BEIR's form, or of a file in DPR's form.

    Args:
      split: split of BEIR's qrels.
      duplicates: how BEIR's pairs that are judged twice are handled.
    """
    if Path(path).is_dir():
        return Beir(path=path, split=split, min_relevance=1, duplicates=duplicates)
    return Dpr(path=path, positive="any")


def config_of_texts(data: Source) -> Config:
    """Returns a config for data of `source_of_path`: the fields query, and title and text."""
    titled = not isinstance(data, Beir) or has_titles(Path(data.path))
    document = TextField(side="document", column="text", title="title" if titled else "")
    fields: Any = {"query": TextField(column="query"), "document": document}
    return Config(fields=fields, data=data)


def make_task(config: Config, data: Source, tokenizer: Any, documents: str | None) -> Task:
    """Returns the task of some data.

    Args:
      config: its first text field of each side is written to the file.
      tokenizer: None if texts are only read.
      documents: file with more documents, for pairs that nobody judged; None or "" for none.

    Raises:
      UserError: data are missing, or a side has no text field.
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
    right: list[Sequence[int]] = []
    for numbers in source.qrels.blocks(np.arange(count)):
        documents, scores = source.qrels.of(numbers)  # [q, J] each
        right += [
            row[(relevance > 0) & (row >= 0)].tolist()
            for row, relevance in zip(documents, scores, strict=True)
        ]
    return Task(source.queries, source.documents, right, query, document, judged=True)


def pairs_task(
    source: RecordSource,
    query: FieldReader,
    document: FieldReader,
    collection: Collection | None = None,
) -> Task:
    """Returns the task of other sources: a query's relevant documents are those of its records.

    Queries with the same text are one. The documents are those of a collection, and those of all
    records (positives and negatives) that are not in it, each text once.
    """
    read = _Reading(query, document)
    for index in range(len(source)):
        read.add(source, index)
    if not read.queries:
        raise UserError(f"{source.name} has no record with a query and a document.")
    places = read.places(collection)
    first = 0 if collection is None else len(collection)
    own = [text for text, place in zip(read.texts, places, strict=True) if place >= first]
    column = document.field.title
    rows = [
        {document.field.column: text} | ({column: title} if column else {}) for title, text in own
    ]
    return Task(
        Records(Rows(read.queries, "queries"), image=(), text=""),
        Documents(collection, document, rows),
        [[places[number] for number in found] for found in read.right],
        query,
        document,
    )


class _Reading:
    """Distinct queries and documents of records.

    Attributes:
      queries: a row per query.
      right: relevant documents of each query, as indices in `texts`.
      texts: title and text of every document.
    """

    def __init__(self, query: FieldReader, document: FieldReader):
        self._query, self._document = query, document
        self.queries: list[dict[str, Any]] = []
        self.right: list[dict[int, None]] = []
        self.texts: list[tuple[str, str]] = []
        self._numbers: dict[Hashable, int] = {}
        self._queries: dict[str, int] = {}

    def add(self, source: RecordSource, index: int) -> None:
        """Reads a record; a damaged one adds nothing."""
        try:
            query = source_texts(source, index, self._query)[0]
            texts = source_texts(source, index, self._document)
            others = read_negatives(_perhaps(source, index, NEGATIVES), NEGATIVES, "")
        except Damaged:
            return
        question = query if isinstance(query, str) else " ".join(filter(None, query))
        number = self._queries.setdefault(normalize_text(question), len(self.queries))
        if number == len(self.queries):
            row = {self._query.field.column: question, ANSWERS: [], "id": str(number)}
            self.queries.append(row)
            self.right.append({})
        answers = self.queries[number][ANSWERS]
        answers += [answer for answer in _answers(source, index) if answer not in answers]
        pairs = [("", text) if isinstance(text, str) else text for text in texts]
        self.right[number] |= dict.fromkeys(map(self._number, pairs))
        for item in others:
            self._number((item.title if self._document.field.title else "", item.text))

    def _number(self, text: tuple[str, str]) -> int:
        number = self._numbers.setdefault(of_text(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def places(self, collection: Collection | None) -> list[int]:
        """Returns the index of each text in the collection, or after it if it is not there."""
        count = 0 if collection is None else len(collection)
        found = [-1] * len(self.texts)
        for row in range(count):
            assert collection is not None
            try:
                document = collection.read(row)
            except Damaged:
                continue
            title = document["title"] if self._document.field.title else ""
            number = self._numbers.get(of_text((title, document["text"])), -1)
            if number >= 0 and found[number] < 0:
                found[number] = row
        after = itertools.count(count)
        return [next(after) if row < 0 else row for row in found]


def _answers(source: RecordSource, index: int) -> tuple[str, ...]:
    value = _perhaps(source, index, ANSWERS)
    answers = [] if is_absent(value) else [value] if isinstance(value, str) else list(value)
    return tuple(map(str, answers))


def _perhaps(source: RecordSource, index: int, column: str) -> Any:
    """Returns a value of a record; None if it has no such column."""
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
            of_collection = renamed(collection.table, {x: y for x, y in names.items() if x != y})
            table = Chain([of_collection, table], "documents") if rows else of_collection
        super().__init__(table, image=(), text="", name="documents")

    def id(self, index: int) -> str:
        """Returns the id in the collection, or "own-INDEX" for the documents of records."""
        count = len(self._ids)
        return str(self._ids[index].as_py()) if index < count else f"own-{index - count}"
