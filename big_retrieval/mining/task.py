"""What is mined: queries, documents, and which documents are right for which query."""

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
      queries: a record for each.
      documents: a record for each.
      right: the numbers of the right documents of each query, best first.
      query: how the queries' texts are read.
      document: how the documents' texts are read.
      judged: whether a query and a document with one id are the same, as in BEIR's ArguAna.
    """

    queries: RecordSource
    documents: RecordSource
    right: Sequence[Sequence[int]]
    query: FieldReader
    document: FieldReader
    judged: bool = False

    def text(self, number: int) -> tuple[str, str]:
        """Title and text of a document; empty where it has none."""
        try:
            found = source_texts(self.documents, number, self.document)[0]
        except Damaged:
            return "", ""
        return ("", found) if isinstance(found, str) else found

    def whole_text(self, number: int) -> str:
        """Title and text of a document as one."""
        return " ".join(self.text(number))

    def question(self, number: int) -> str:
        """The text of a query, with its title if it has one; empty where it has none."""
        try:
            found = source_texts(self.queries, number, self.query)[0]
        except Damaged:
            return ""
        return found if isinstance(found, str) else " ".join(filter(None, found))

    def answers(self, number: int) -> tuple[str, ...]:
        """The known answers to a query."""
        return _answers(self.queries, number)

    def document_id(self, number: int) -> str:
        """The id of a document."""
        return id_of(self.documents, number)

    def itself(self, query: int, document: int) -> bool:
        """Whether a document is the query: it has its id, in judged data, or its text."""
        known = all(hasattr(source, "id") for source in (self.queries, self.documents))
        if self.judged and known and id_of(self.queries, query) == self.document_id(document):
            return True
        texts = self.question(query), self.text(document)[1], self.whole_text(document)
        question, *keys = (normalize_text(text, ignore_case=True) for text in texts)
        return question in keys

    @cached_property
    def right_of_text(self) -> Sequence[AnyOf[int]]:
        """The right documents of each query and of all other queries with its text."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        keys = []
        for number, right in enumerate(self.right):
            keys.append(normalize_text(self.question(number), ignore_case=True))
            found[keys[-1]].update(right)
        return [found[key] for key in keys]


def source_of_path(path: str, split: str, duplicates: DuplicatePolicy) -> Source:
    """Queries and right documents of a path: a folder in BEIR's form, or a file in DPR's form.

    Args:
      path: the folder or file.
      split: of BEIR's qrels.
      duplicates: what becomes of BEIR's pairs that are judged twice.
    """
    if Path(path).is_dir():
        return Beir(path=path, split=split, min_relevance=1, duplicates=duplicates)
    return Dpr(path=path, positive="any")


def config_of_texts(data: Source) -> Config:
    """A config for data of `source_of_path` without one: the fields query, and title and text."""
    titled = not isinstance(data, Beir) or has_titles(Path(data.path))
    document = TextField(side="document", column="text", title="title" if titled else "")
    fields: Any = {"query": TextField(column="query"), "document": document}
    return Config(fields=fields, data=data)


def make_task(config: Config, data: Source, tokenizer: Any, documents: str | None) -> Task:
    """The task of some data.

    Args:
      config: has the fields, of which the first text field of each side is written.
      data: queries and right documents.
      tokenizer: of the fields; None: texts are only read.
      documents: file of further documents of pairs that nobody judged; None or "": none.

    Raises:
      UserError: data that are missing, or a side without a text field.
    """
    readers = make_readers(config, tokenizer)
    texts: list[FieldReader] = []
    for side in ("query", "document"):
        names = config.side(side, "text")
        if not names:
            raise UserError(f"config.fields has no text field on the {side} side to mine with.")
        texts.append(readers[min(names)])
    source = make_source(data)
    if not isinstance(source, GradedPairs):
        collection = Collection(documents) if documents else None
        return pairs_task(source, texts[0], texts[1], collection)
    if documents:
        raise UserError("--documents is not for judged pairs, which bring all documents.")
    return judged_task(source, texts[0], texts[1])


def judged_task(source: GradedPairs, query: FieldReader, document: FieldReader) -> Task:
    """The task of judged pairs: documents with a relevance above 0 are right."""
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
    """The task of other sources: a document is right for the queries whose records have it.

    Queries with the same text are one. The documents are those of a collection, and those of all
    records (right ones and negatives) that are not in it, each text once.

    Args:
      source: the records.
      query: how their queries are read.
      document: how their documents are read.
      collection: further documents; None: none.

    Raises:
      UserError: no record can be read.
    """
    read = _Reading(query, document)
    for index in range(len(source)):
        read.add(source, index)
    if not read.queries:
        raise UserError(f"{source.name} has no record with a query and a document to mine for.")
    places = read.places(collection)
    first = 0 if collection is None else len(collection)
    own = [text for text, place in zip(read.texts, places, strict=True) if place >= first]
    rows = [{document.field.column: text} | _title(document, title) for title, text in own]
    return Task(
        Records(Rows(read.queries, "queries"), image=(), text=""),
        Documents(_table(collection, document, rows), collection),
        [[places[number] for number in found] for found in read.right],
        query,
        document,
    )


class _Reading:
    """Distinct queries and documents of records.

    Attributes:
      queries: a row for each query.
      right: for each the numbers of its right documents.
      texts: title and text of every document, by number.
    """

    def __init__(self, query: FieldReader, document: FieldReader):
        self._query, self._document = query, document
        self.queries: list[dict[str, Any]] = []
        self.right: list[dict[int, None]] = []
        self.texts: list[tuple[str, str]] = []
        self._numbers: dict[Hashable, int] = {}
        self._asked: dict[str, int] = {}

    def add(self, source: RecordSource, index: int) -> None:
        """Reads a record; one that is damaged adds nothing."""
        try:
            said = source_texts(source, index, self._query)[0]
            texts = source_texts(source, index, self._document)
            others = read_negatives(_perhaps(source, index, NEGATIVES), NEGATIVES, "")
        except Damaged:
            return
        words = said if isinstance(said, str) else " ".join(filter(None, said))
        place = self._asked.setdefault(normalize_text(words), len(self.queries))
        if place == len(self.queries):
            self.queries.append({self._query.field.column: words, ANSWERS: [], "id": str(place)})
            self.right.append({})
        mine = self.queries[place][ANSWERS]
        mine += [each for each in _answers(source, index) if each not in mine]
        pairs = [("", text) if isinstance(text, str) else text for text in texts]
        self.right[place] |= dict.fromkeys(map(self._number, pairs))
        for item in others:
            self._number((item.title if self._document.field.title else "", item.text))

    def _number(self, text: tuple[str, str]) -> int:
        number = self._numbers.setdefault(of_text(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def places(self, collection: Collection | None) -> list[int]:
        """Where each text stands: in the collection, or behind it in the order of the numbers."""
        found = [-1] * len(self.texts)
        for row in range(0 if collection is None else len(collection)):
            assert collection is not None
            try:
                each = collection.read(row)
            except Damaged:
                continue
            key = (each["title"] if self._document.field.title else "", each["text"])
            number = self._numbers.get(of_text(key), -1)
            if number >= 0 and found[number] < 0:
                found[number] = row
        behind = itertools.count(0 if collection is None else len(collection))
        return [next(behind) if place < 0 else place for place in found]


def _answers(source: RecordSource, index: int) -> tuple[str, ...]:
    value = _perhaps(source, index, ANSWERS)
    found = [] if is_absent(value) else [value] if isinstance(value, str) else list(value)
    return tuple(str(each) for each in found)


def _perhaps(source: RecordSource, index: int, column: str) -> Any:
    """A value that records may have; None where they have no such column."""
    try:
        return value_of(source, index, column)
    except UserError:
        return None


def _title(reader: FieldReader, title: str) -> dict[str, str]:
    column = reader.field.title
    return {column: title} if column else {}


class Documents(Records):
    """Documents of a collection, and behind them those of records.

    Args:
      table: all of them.
      collection: knows the ids of the first ones; None: there are none.
    """

    def __init__(self, table: Table, collection: Collection | None):
        super().__init__(table, image=(), text="", name="documents")
        self._collection = collection

    def id(self, index: int) -> str:
        """The id in the collection; of others their number, with "own-" in front."""
        count = 0 if self._collection is None else len(self._collection)
        if self._collection is not None and index < count:
            return str(self._collection.ids[index].as_py())
        return f"own-{index - count}"


def _table(collection: Collection | None, reader: FieldReader, rows: list[dict[str, Any]]) -> Table:
    own = Rows(rows, "documents")
    if collection is None:
        return own
    title = reader.field.title
    names = {"text": reader.field.column} | ({"title": title} if title else {})
    whole = renamed(collection.table, {x: y for x, y in names.items() if x != y})
    return Chain([whole, own], "documents") if rows else whole
