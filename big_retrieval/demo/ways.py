"""Ways to search a collection: by a model's embeddings, by bags of words, by BM25.

A way encodes queries of some kinds ("text", "image", or "like": the number of a document whose
neighbours are wanted), searches with what it encoded, and says which terms made a score.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

from big_retrieval.evals.bm25 import Bm25
from big_retrieval.inference.load import TrainedModel
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed

Kind = Literal["text", "image", "like"]
BATCH = 8  # queries encoded at a time, where several wait; see `batching.SEVERAL`
DEPTHS = (64, 1024)  # answers that are searched for: few, as programs are compiled for each
WORDS = 512  # of the longest text that warms up


def depth_of(wanted: int) -> int:
    """The depth of a search whose first `wanted` answers are needed."""
    return next(depth for depth in DEPTHS if depth >= wanted)


@dataclass(frozen=True)
class Way:
    """The base of all ways.

    Attributes:
      key: names it in addresses.
      title: names it on the page.
      note: what it does, in half a sentence.
    """

    key: str
    title: str
    note: str

    @property
    def reads(self) -> frozenset[Kind]:
        """The kinds of queries that it reads."""
        return frozenset({"text"})

    def encode(self, kind: Kind, values: Sequence[Any]) -> Any:
        """Queries of one kind as rows that `search` takes.

        Args:
          kind: one of `reads`.
          values: n texts, undecoded images or numbers of documents.

        Raises:
          UserError: a value cannot be read.
        """
        raise NotImplementedError

    def search(self, rows: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The best documents of n rows: numbers and scores [n, depth], as indexes return them."""
        raise NotImplementedError

    def terms(self, row: Any, number: int) -> Listed:
        """What each term adds to the score of a document, largest first; []: it knows no terms."""
        del row, number
        return []

    def strongest(self, row: Any, count: int) -> Listed:
        """The strongest terms of a query's row; []: it knows no terms."""
        del row, count
        return []

    def warm_up(self) -> None:
        """Compiles what queries of any length will need."""
        self.search(self.encode("text", ["a"]), DEPTHS[0])


@dataclass(frozen=True)
class ModelWay(Way):
    """Queries that a model encodes, in an index of either kind.

    Attributes:
      index: of the documents.
      model: encodes queries.
      text_field: reads texts; "": no field does.
      image_field: reads images; "": no field does.
      documents: the fields of the documents.
    """

    index: InvertedIndex | DenseIndex
    model: TrainedModel
    text_field: str
    image_field: str
    documents: tuple[str, ...]

    @property
    def reads(self) -> frozenset[Kind]:
        """The kinds of queries that it reads."""
        has = {"text": self.text_field, "image": self.image_field, "like": "documents"}
        return frozenset(kind for kind, field in has.items() if field)  # type: ignore[misc]

    @property
    def lexical(self) -> bool:
        """Whether its embeddings have terms."""
        return isinstance(self.index, InvertedIndex)

    def encode(self, kind: Kind, values: Sequence[Any]) -> Any:
        """See `Way`; the row of a document is what the index has of it."""
        if kind == "like" and isinstance(self.index, DenseIndex):
            return np.array(self.index.embeddings[list(values)])
        if kind == "like":
            found = [self.index.row(number) for number in values]  # type: ignore[union-attr]
            return scipy.sparse.csr_array(scipy.sparse.vstack(found, format="csr"))
        return rows_of(self.model, values, self.text_field if kind == "text" else self.image_field)

    def search(self, rows: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Way`."""
        return self.index.search(rows, depth)

    def terms(self, row: Any, number: int) -> Listed:
        """See `Way`."""
        if not isinstance(self.index, InvertedIndex):
            return []
        found = self.index.explain(row.indices, row.data, number)
        return [(self.words[term], value) for term, value in found if value]

    def strongest(self, row: Any, count: int) -> Listed:
        """See `Way`."""
        return listing.strongest(row, self.words, count) if self.lexical else []

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """The terms of a lexical model."""
        return self.model.terms(self.text_field or self.image_field).names(self.model.tokenizer)

    def warm_up(self) -> None:
        """Compiles what queries of any length will need."""
        lengths = [1 << power for power in range(WORDS.bit_length())]
        texts = [" ".join(["a"] * length) for length in lengths] if self.text_field else []
        part: Any = self.model.config.fields.get(self.text_field)
        for text, length in zip(texts, lengths, strict=True):
            self.encode("text", [text])
            self.encode("text", [text] * BATCH)
            if length >= part.length:
                break
        if self.image_field:
            size: Any = self.model.config.fields[self.image_field]
            self.encode("image", [np.zeros((size.size, size.size, 3), np.uint8)])
        row = self.encode("like", [0])
        counts = [1 << power for power in range(BATCH.bit_length())]  # as `DenseIndex` pads them
        for count in counts if isinstance(self.index, DenseIndex) else counts[:1]:
            for depth in DEPTHS:
                self.search(np.repeat(row, count, 0) if count > 1 else row, depth)


@dataclass(frozen=True)
class BagWay(Way):
    """The bag of a query's words in an inverted index: no network runs (VDR, section 4.3).

    Attributes:
      index: of the documents.
      bags: makes bags of words.
      names: of the terms.
    """

    index: InvertedIndex
    bags: BagOfWordsEncoder
    names: tuple[str, ...]

    def encode(self, kind: Kind, values: Sequence[Any]) -> Any:
        """See `Way`."""
        return self.bags.bag(values, self.index.about.query_length)

    def search(self, rows: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Way`."""
        return self.index.search(rows, depth)

    def terms(self, row: Any, number: int) -> Listed:
        """See `Way`."""
        found = self.index.explain(row.indices, row.data, number)
        return [(self.names[term], value) for term, value in found if value]

    def strongest(self, row: Any, count: int) -> Listed:
        """See `Way`."""
        return listing.strongest(row, self.names, count)


@dataclass(frozen=True)
class Bm25Way(Way):
    """BM25 over the documents' texts.

    Attributes:
      bm25: of the texts.
    """

    bm25: Bm25

    def encode(self, kind: Kind, values: Sequence[Any]) -> Any:
        """See `Way`: texts as they are, an array of objects [n]."""
        return np.array(values, object)

    def search(self, rows: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Way`."""
        numbers, scores, _ = self.bm25.search(rows, depth)
        return numbers, scores

    def terms(self, row: Any, number: int) -> Listed:
        """See `Way`."""
        return self.bm25.parts(row[0], number)
