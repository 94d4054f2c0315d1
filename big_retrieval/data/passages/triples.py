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
from big_retrieval.data.formats.open_files import find_files, table_of
from big_retrieval.data.formats.tables import Table, check_columns, combined_digest
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.passages.published import (
    COLUMNS,
    Document,
    Passages,
    TextSource,
    positive_columns,
)
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.headerless import tab_reader
from big_retrieval.data.stores.json_files import json_reader
from big_retrieval.data.stores.store import Store
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError

_compute: Any = pc  # pyarrow generates its functions at import; type checkers miss them
TRIPLE = {"query": "qid", "pos": "positive", "neg": "negative"}  # column -> alternative name
TRIPLES_ADVICE = "write a query, a positive and a negative document per line, separated by tabs"


@register("source")
@dataclass(frozen=True)
class Triples(TextSource):
    """A query, a positive and a negative document per row, in MS MARCO's forms.

    Records have `query`, `text` and `title` of a positive document, and `negatives`. If rows have
    ids, records also have `query_id` and `document_id`. If `positive` is "any", `text`, `title` and
    `document_id` have a value per positive document.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    type: Literal["triples"] = "triples"
    # tab-separated file without a header line: three texts, or three ids; or JSON lines of
    # {"query", "pos", "neg"}: pos and neg may be lists, neg may be {name of a list: list}
    path: str = ""
    queries: str = ""  # file of the queries: id and text; empty if `path` has texts
    documents: str = ""  # file of the documents: id, text, optional title; tabs or JSON lines
    positive: Literal["first", "any"] = "first"  # the first positive document, or a sampled one
    # names of the lists of `neg` to read, such as ("bm25",); empty for all lists
    lists: tuple[str, ...] = ()
    # 0: a line is a record; N: all tab-separated lines of a query are a record, so an epoch has
    # each query once; of many lines, N are read, evenly spread
    by_query: AtLeast0 = 0
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with triples")
        if self.lists and self.by_query:
            yield (
                f"{path}.lists is for JSON lines, {path}.by_query for tab-separated lines; set "
                "only one of them."
            )
        if bool(self.queries) != bool(self.documents):
            key = "documents" if self.queries else "queries"
            yield f"{path}.{key} is empty; triples of ids need both files, triples of texts none."

    def build(self) -> Passages:
        def reader_of(path: Path) -> Reader:
            if path.suffix.lower() not in (".jsonl", ".ndjson", ".json"):
                return tab_reader(path, tuple(TRIPLE))
            if self.by_query:
                raise UserError(f"{path}: `by_query` is for tab-separated lines. Set it to 0.")
            return json_reader(path)

        table, _ = table_of(find_files(self.path, self.how_to_get, TRIPLES_ADVICE), reader_of)
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
    """Rows {query, pos, neg} per distinct query of a table, in the order of the first lines.

    `pos` and `neg` list the distinct documents of the query's lines. The row indices take 8 bytes
    per line. Grouping takes about 0.2 microseconds and 15 bytes per line.

    Args:
      limit: maximum number of lines to read per query, evenly spread over its lines.
    """

    def __init__(self, table: Table, limit: int):
        column: Any = table.values("query") if isinstance(table, Store) else table.column("query")
        if column is None:
            raise UserError(
                f"{table.name}: grouping by query needs files of one folder and format if lines "
                "cannot be read. Correct them, or set `by_query` to 0."
            )
        if column.null_count:
            column = _compute.fill_null(column, "")  # records of an empty query are damaged
        codes, queries = encode(_compute.utf8_trim_whitespace(column))
        self.name, self.columns = table.name, table.columns
        self._table, self._limit = table, limit
        self._lines = np.argsort(codes, kind="stable")  # [lines], ordered by query
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
    """Raises a UserError if a list of negatives is not in the first 100 lines."""
    available: dict[str, None] = {}
    for index in range(min(len(table), 100)):
        with contextlib.suppress(Damaged):
            row = table.row(index)
            lists = row.get("neg", row.get(TRIPLE["neg"]))
            available |= dict.fromkeys(lists) if _is_lists(lists) else {}
    missing = next((name for name in names if name not in available), None)
    if missing is not None:
        raise UserError(
            f"{table.name}: no list {missing!r} in 'neg' of the first lines, which have: "
            f"{', '.join(available) or 'no named lists'}. Change `lists` of the data; () reads all."
        )


@dataclass(frozen=True)
class TripleReader:
    """Converts rows with `query`, `pos` and `neg` to records; the attributes as in `Triples`."""

    positive: str
    lists: tuple[str, ...] = ()
    queries: Collection | None = None
    documents: Collection | None = None

    def __call__(self, row: Record, place: str) -> Record:
        """Converts a row; raises `Damaged` for a missing value, another type, or an unknown id."""
        query, pos, neg = (row.get(name, row.get(other)) for name, other in TRIPLE.items())
        queries = _items(query, "query", place)
        if len(queries) != 1 or (self.queries is None and isinstance(queries[0], Mapping)):
            raise Damaged(place, f"'query' is {query!r:.80}, not one text")
        text, ids = str(queries[0]), {}
        if self.queries is not None:
            ids, texts = {"query_id": text}, self.queries.find(text, place)
            text = texts["text"] or texts["title"]
        if self.lists and not is_absent(neg):
            if not _is_lists(neg):
                raise Damaged(place, f"'neg' has no lists by name, such as {self.lists[0]!r}")
            neg = {name: neg[name] for name in self.lists if name in neg}
        pos, neg = _items(pos, "pos", place), _items(neg, "neg", place)
        if not pos:
            raise Damaged(place, "'pos' has no document")
        positives = [self._document(value, place) for value in pos]
        if self.documents is not None:
            pairs = zip(positives, pos, strict=True)
            positives = [{**document, "document_id": str(key)} for document, key in pairs]
        positive_texts = {normalize_text(document["text"]) for document in positives}
        negatives = [self._document(value, place) for value in neg if value not in pos]
        return {
            "query": text,
            **positive_columns(positives, self.positive),
            "negatives": [x for x in negatives if normalize_text(x["text"]) not in positive_texts],
            **ids,
        }

    def _document(self, document: Any, place: str) -> Document:
        """Returns title and text of a document or its id."""
        if self.documents is not None:
            return self.documents.find(str(document), place)
        if isinstance(document, Mapping):
            return {name: str(document.get(name) or "") for name in ("title", "text")}
        return {"title": "", "text": str(document)}


def _items(value: Any, name: str, place: str) -> list[Any]:
    """Returns texts, ids or {title, text} of one value, a list, or (each once) lists by name."""
    if is_absent(value):
        return []
    if _is_lists(value):
        unique: dict[Any, Any] = {}
        for item in (item for entry in value.values() for item in _items(entry, name, place)):
            unique.setdefault(_key(item), item)
        return list(unique.values())
    values = value if isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, str | int | Mapping):
            raise Damaged(place, f"{name!r} has {item!r:.80}, not a text or an id")
    return [item for item in values if not is_absent(item)]


def _is_lists(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Returns True for named lists, False for a list, a text, an id or a document."""
    return isinstance(value, Mapping) and "text" not in value


def _key(document: Any) -> Any:
    is_fields = isinstance(document, Mapping)
    return (document.get("title"), document.get("text")) if is_fields else document
