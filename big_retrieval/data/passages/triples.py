"""Query, right document, wrong document: as MS MARCO's triples have them, by texts or by ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.config.texts import Triples
from big_retrieval.data.formats.lines import DelimitedLines, json_table
from big_retrieval.data.formats.open_files import files_of, table_of
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.passages.sources import Passages, right_ones
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.errors import Damaged

NAMES = ("query", "pos", "neg")
ADVICE = "write a query, a right document and a wrong one a line, separated by tabs"


def triples(config: Triples) -> Passages:
    """Opens triples; see `config.Triples`.

    Raises:
      UserError: a file that is missing, or ids that are there twice.
    """
    table, _ = table_of(files_of(config.path, config.how_to_get or ADVICE), _open)
    sides = (config.queries, config.documents)
    by_id = [Collection(path, config.how_to_get) for path in sides if path]
    return Passages(table, TripleReader(config.positive, *by_id))


def _open(path: Path) -> Table:
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        return json_table(path)
    return DelimitedLines(path, NAMES)


@dataclass(frozen=True)
class TripleReader:
    """Makes records of rows with `query`, `pos` and `neg`.

    Attributes:
      positive: see `passages.right_ones`.
      queries: the texts of the queries' ids; None: the rows have texts.
      documents: those of the documents'.
    """

    positive: str
    queries: Collection | None = None
    documents: Collection | None = None

    def __call__(self, row: Record, place: str) -> Record:
        """The record of a row.

        Raises:
          Damaged: a value is missing, is no text, or no known id.
        """
        query, right, wrong = (row.get(name, row.get(OTHER[name])) for name in NAMES)
        found = _items(query, "query", place)
        if len(found) != 1 or (self.queries is None and isinstance(found[0], Mapping)):
            raise Damaged(place, f"'query' is {query!r:.80}, not one text")
        known = {} if self.queries is None else {"query_id": str(found[0])}
        text = str(found[0]) if self.queries is None else self.queries.find(str(found[0]), place)
        right, wrong = _items(right, "pos", place), _items(wrong, "neg", place)
        if not right:
            raise Damaged(place, "'pos' has no document")
        texts = [self._document(each, place) for each in right]
        if self.documents is not None:
            pairs = zip(texts, right, strict=True)
            texts = [{**each, "document_id": str(item)} for each, item in pairs]
        same = {each["text"] for each in texts}
        negatives = [self._document(each, place) for each in wrong if each not in right]
        return {
            "query": text if isinstance(text, str) else text["text"] or text["title"],
            **right_ones(texts, self.positive),
            "negatives": [each for each in negatives if each["text"] not in same],
            **known,
        }

    def _document(self, item: Any, place: str) -> Mapping[str, str]:
        """Title and text of a document that is named by its id, or given."""
        if self.documents is not None:
            return self.documents.find(str(item), place)
        if isinstance(item, Mapping):
            return {name: str(item.get(name) or "") for name in ("title", "text")}
        return {"title": "", "text": str(item)}


OTHER = {"query": "qid", "pos": "positive", "neg": "negative"}  # names that others give them


def _items(value: Any, name: str, place: str) -> list[Any]:
    """A value, a list of them, or lists of them by name (each once): texts, ids, {title, text}."""
    if is_absent(value):
        return []
    if isinstance(value, Mapping) and "text" not in value:
        once: dict[Any, Any] = {}
        for each in value.values():
            for item in _items(each, name, place):
                once.setdefault(_key(item), item)
        return list(once.values())
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | Mapping):
            raise Damaged(place, f"{name!r} has {item!r:.80}, not a text or an id")
    return [item for item in items if not is_absent(item)]


def _key(item: Any) -> Any:
    """What makes two items the same."""
    return (item.get("title"), item.get("text")) if isinstance(item, Mapping) else item
