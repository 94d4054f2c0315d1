"""Modes of searching a collection: by a model's embeddings, by bags of words, or by BM25.

A mode encodes a query as a row, searches with the row, and lists the terms of a score. Queries are
of three kinds: "text", "image", or "like" (the index of a document whose neighbors are searched).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from big_retrieval.evals.bm25 import Bm25
from big_retrieval.inference.load import TrainedModel
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed

Kind = Literal["text", "image", "like"]
DEPTHS = (64, 1024)  # search depths; few, because a program is compiled for each
LONGEST = 512  # words of the longest text of the warm-up


@dataclass(frozen=True)
class SearchMode:
    """Base class of search modes."""

    key: str  # value of `mode` in URLs
    title: str  # name on the page
    note: str  # description on the page

    @property
    def reads(self) -> frozenset[Kind]:
        """The kinds of queries that the mode can encode."""
        return frozenset({"text"})

    def encode(self, kind: Kind, value: Any) -> Any:
        """Encodes a text, an undecoded image, or a document index as one row for `search`."""
        raise NotImplementedError

    def search(self, row: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns indices (-1 for none) and scores of the best documents, best first, [depth]."""
        raise NotImplementedError

    def terms(self, row: Any, document: int) -> Listed:
        """Returns each term's part of the score, largest first; empty without terms."""
        del row, document
        return []

    def strongest(self, row: Any, count: int) -> Listed:
        """Returns the strongest terms of a query; empty without terms."""
        del row, count
        return []

    def warm_up(self) -> None:
        """Compiles the programs that queries of any length need."""
        self.search(self.encode("text", "a"), DEPTHS[0])


@dataclass(frozen=True)
class IndexMode(SearchMode):
    """Base class of modes that search an index."""

    index: InvertedIndex | DenseIndex

    @functools.cached_property
    def words(self) -> Sequence[str]:
        """Names of the terms of an inverted index."""
        raise NotImplementedError

    @property
    def lexical(self) -> bool:
        """True if embeddings have terms."""
        return isinstance(self.index, InvertedIndex)

    def search(self, row: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        documents, scores = self.index.search(row, depth)
        return documents[0], scores[0]

    def terms(self, row: Any, document: int) -> Listed:
        if not isinstance(self.index, InvertedIndex):
            return []
        parts = self.index.explain(row.indices, row.data, document)
        return [(self.words[term], value) for term, value in parts if value]

    def strongest(self, row: Any, count: int) -> Listed:
        return listing.strongest(row, self.words, count) if self.lexical else []


@dataclass(frozen=True)
class ModelMode(IndexMode):
    """Search with queries that a model encodes."""

    model: TrainedModel
    text_field: str  # field that reads texts; "" for none
    image_field: str  # field that reads images; "" for none
    documents: tuple[str, ...]  # fields of the documents

    @property
    def reads(self) -> frozenset[Kind]:
        fields = {"text": self.text_field, "image": self.image_field, "like": "documents"}
        return frozenset(kind for kind, field in fields.items() if field)  # type: ignore[misc]

    @functools.cached_property
    def words(self) -> Sequence[str]:
        return self.model.terms(self.text_field or self.image_field).names(self.model.tokenizer)

    @property
    def document_image(self) -> str:
        """Image field of the documents; "" for none."""
        fields = self.model.config.fields
        return next((name for name in self.documents if fields[name].modality == "image"), "")

    def encode(self, kind: Kind, value: Any) -> Any:
        if kind != "like":
            field = self.text_field if kind == "text" else self.image_field
            return rows_of(self.model, [value], field)
        if isinstance(self.index, DenseIndex):
            return np.array(self.index.embeddings[[value]])
        return self.index.row(value)

    def warm_up(self) -> None:
        fields: Any = self.model.config.fields
        for power in range(LONGEST.bit_length() if self.text_field else 0):
            self.encode("text", " ".join(["a"] * (1 << power)))
            if 1 << power >= fields[self.text_field].length:
                break
        if self.image_field:
            size = fields[self.image_field].size
            self.encode("image", np.zeros((size, size, 3), np.uint8))
        for depth in DEPTHS:
            self.search(self.encode("like", 0), depth)


@dataclass(frozen=True)
class BagMode(IndexMode):
    """Search with the bag of a query's words; no network runs (VDR, section 4.3)."""

    bags: BagOfWordsEncoder

    @functools.cached_property
    def words(self) -> Sequence[str]:
        return tuple(self.bags.words)

    def encode(self, kind: Kind, value: Any) -> Any:
        return self.bags.bag([value], self.index.about.query_length)


@dataclass(frozen=True)
class Bm25Mode(SearchMode):
    """BM25 over the documents' texts; a row is an array of one text."""

    bm25: Bm25

    def encode(self, kind: Kind, value: Any) -> Any:
        return np.array([value], object)

    def search(self, row: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        documents, scores, _ = self.bm25.search(row, depth)
        return documents[0], scores[0]

    def terms(self, row: Any, document: int) -> Listed:
        return self.bm25.parts(row[0], document)
