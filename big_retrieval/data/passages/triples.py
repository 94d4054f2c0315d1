"""MS MARCO's triples: queries with positives and negatives, as texts or ids."""

import collections.abc as abc
import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np
import pyarrow.compute as pc

from big_retrieval.config.ranges import AtLeast0
from big_retrieval.config.registry import register
from big_retrieval.config.sources import not_empty
from big_retrieval.data.formats.columns import encode
from big_retrieval.data.formats.open_files import files_of, table_of
from big_retrieval.data.formats.tables import Table, check_columns, combined_digest
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.passages.published import (
    COLUMNS,
    Document,
    Passages,
    TextSource,
    right_ones,
)
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.headerless import tab_reader
from big_retrieval.data.stores.json_files import json_reader
from big_retrieval.data.stores.store import Store
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError

_compute: Any = pc  # its functions are made when it is imported, which types cannot see
TRIPLE = {"query": "qid", "pos": "positive", "neg": "negative"}  # with names that others give them
TRIPLES_ADVICE = "write a query, a right document and a wrong one a line, separated by tabs"


@register("source")
@dataclass(frozen=True)
class Triples(TextSource):
    """A query, a document that answers it and one that does not, in MS MARCO's forms.

    Records have `query`, `text` and `title` of a right document, `negatives`, and, where ids are
    read, `query_id` and `document_id` (of each where one is drawn).
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    type: Literal["triples"] = "triples"
    # a file without a header line, tab-separated: three texts, or three ids; or JSON lines of
    # {"query", "pos", "neg"}, where pos and neg may be lists, and neg lists by name
    path: str = ""
    queries: str = ""  # file of the texts of the queries' ids: id and text; empty: path has texts
    # file of the documents': id, text and perhaps title (tab-separated), or JSON lines
    documents: str = ""
    positive: Literal["first", "any"] = "first"  # of several right documents
    # names of the lists of `neg` that negatives come from, such as ("bm25",); empty for all lists
    lists: tuple[str, ...] = ()
    # 0: a line is a record. N: the tab-separated lines of one query are one record, so that an
    # epoch has each query once; at most N of these lines are read, evenly spread
    by_query: AtLeast0 = 0
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with triples")
        if self.lists and self.by_query:
            yield (
                f"{path}.lists names lists of JSON lines, {path}.by_query groups tab-separated "
                "lines; set one of them only."
            )
        if bool(self.queries) != bool(self.documents):
            key = "documents" if self.queries else "queries"
            yield (
                f"{path}.{key} is empty; triples of ids need the files of both texts, of texts "
                "none."
            )

    def build(self) -> Passages:

        def reader_of(path: Path) -> Reader:
            if path.suffix.lower() not in (".jsonl", ".ndjson", ".json"):
                return tab_reader(path, tuple(TRIPLE))
            if self.by_query:
                raise UserError(
                    f"{path}: `by_query` groups tab-separated lines. JSON lines have lists "
                    "already; set it to 0."
                )
            return json_reader(path)

        table, _ = table_of(files_of(self.path, self.how_to_get or TRIPLES_ADVICE), reader_of)
        if self.lists:
            check_lists(table, self.lists)
        if self.by_query:
            check_columns(table, tuple(TRIPLE))
            table = QueryLines(table, self.by_query)
        paths = (self.queries, self.documents)
        by_id = [Collection(path, self.how_to_get) for path in paths if path]
        reader = TripleReader(self.positive, self.lists, *by_id)
        return Passages(table, reader, [collection.table for collection in by_id])


class QueryLines(Table):
    """Rows {query, pos, neg} of the different queries of a table, in the order of their first line.

    `pos` and `neg` list the documents of the query's lines, each once. The line numbers are in
    memory, 8 bytes per line. Grouping takes about 0.2 microseconds and 15 bytes per line.

    Args:
      limit: maximum number of lines of a query that are read, evenly spread over its lines.

    Raises:
      UserError: queries are not texts in all files, or lines of several stores are damaged.
    """

    def __init__(self, table: Table, limit: int):
        column: Any = table.values("query") if isinstance(table, Store) else table.column("query")
        if column is None:
            raise UserError(
                f"{table.name}: lines that cannot be read can be grouped by query only in files of "
                "one folder and one form; correct them, or set `by_query` to 0."
            )
        if column.null_count:
            column = _compute.fill_null(column, "")  # records of an empty query are damaged
        codes, queries = encode(_compute.utf8_trim_whitespace(column))
        self.name, self.columns = table.name, table.columns
        self._table, self._limit = table, limit
        self._lines = np.argsort(codes, kind="stable")  # [lines], those of a query together
        counts = np.bincount(codes, minlength=len(queries))
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])  # [queries + 1]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def place(self, index: int) -> str:
        return self._table.place(int(self._lines[self._starts[index]]))

    def row(self, index: int, columns: abc.Collection[str] | None = None) -> Record:
        start, stop = self._starts[index : index + 2].tolist()
        count = min(stop - start, self._limit)
        lines = self._lines[start + np.arange(count) * (stop - start) // count]
        rows = [self._table.row(line) for line in lines.tolist()]
        lists = {name: list(dict.fromkeys(row[name] for row in rows)) for name in ("pos", "neg")}
        return {"query": rows[0]["query"], **lists}

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest([self._table.fingerprint], self._limit)


def check_lists(table: Table, names: Sequence[str]) -> None:
    """Checks that the first 100 lines have the lists of negatives that a config names.

    Raises:
      UserError: a list is in none of these lines.
    """
    available: dict[str, None] = {}
    for index in range(min(len(table), 100)):
        with contextlib.suppress(Damaged):
            row = table.row(index)
            lists = row.get("neg", row.get(TRIPLE["neg"]))
            available |= dict.fromkeys(lists) if _is_lists(lists) else {}
    missing = [name for name in names if name not in available]
    if missing:
        known = ", ".join(available) or "none by name"
        raise UserError(
            f"{table.name}: no list {missing[0]!r} in 'neg' of the first lines, which have: "
            f"{known}. Change `lists` of the data; () takes all."
        )


@dataclass(frozen=True)
class TripleReader:
    """Makes records of rows with `query`, `pos` and `neg`.

    Attributes:
      lists: names of the lists of `neg` that are read; empty for all lists.
      queries: the texts of the queries' ids; None: the rows have texts.
      documents: the texts of the documents' ids; likewise.
    """

    positive: str
    lists: tuple[str, ...] = ()
    queries: Collection | None = None
    documents: Collection | None = None

    def __call__(self, row: Record, place: str) -> Record:
        """The record of a row.

        Raises:
          Damaged: a value is missing, no text, or an unknown id.
        """
        query, right, wrong = (row.get(name, row.get(other)) for name, other in TRIPLE.items())
        found = _items(query, "query", place)
        if len(found) != 1 or (self.queries is None and isinstance(found[0], Mapping)):
            raise Damaged(place, f"'query' is {query!r:.80}, not one text")
        text, known = str(found[0]), {}
        if self.queries is not None:
            known, each = {"query_id": text}, self.queries.find(text, place)
            text = each["text"] or each["title"]
        if self.lists and not is_absent(wrong):
            if not _is_lists(wrong):
                raise Damaged(place, f"'neg' has no lists by name, such as {self.lists[0]!r}")
            wrong = {name: wrong[name] for name in self.lists if name in wrong}
        right, wrong = _items(right, "pos", place), _items(wrong, "neg", place)
        if not right:
            raise Damaged(place, "'pos' has no document")
        texts = [self._document(each, place) for each in right]
        if self.documents is not None:
            pairs = zip(texts, right, strict=True)
            texts = [{**each, "document_id": str(item)} for each, item in pairs]
        same = {normalize_text(each["text"]) for each in texts}
        negatives = [self._document(each, place) for each in wrong if each not in right]
        return {
            "query": text,
            **right_ones(texts, self.positive),
            "negatives": [x for x in negatives if normalize_text(x["text"]) not in same],
            **known,
        }

    def _document(self, item: Any, place: str) -> Document:
        """Title and text of a document that a row names by its id, or holds."""
        if self.documents is not None:
            return self.documents.find(str(item), place)
        if isinstance(item, Mapping):
            return {name: str(item.get(name) or "") for name in ("title", "text")}
        return {"title": "", "text": str(item)}


def _items(value: Any, name: str, place: str) -> list[Any]:
    """A value, a list of them, or lists of them by name (each once): texts, ids, {title, text}."""
    if is_absent(value):
        return []
    if _is_lists(value):
        once: dict[Any, Any] = {}
        for item in (item for each in value.values() for item in _items(each, name, place)):
            once.setdefault(_key(item), item)
        return list(once.values())
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | Mapping):
            raise Damaged(place, f"{name!r} has {item!r:.80}, not a text or an id")
    return [item for item in items if not is_absent(item)]


def _is_lists(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Returns True for lists by name, False for a list, a text, an id or a document."""
    return isinstance(value, Mapping) and "text" not in value


def _key(item: Any) -> Any:
    """The key by which two items are the same."""
    return (item.get("title"), item.get("text")) if isinstance(item, Mapping) else item
