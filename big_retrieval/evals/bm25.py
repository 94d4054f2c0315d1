"""Rankings by shared words (BM25), to compare models with; computed by the library bm25s."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.errors import UserError
from big_retrieval.evals.top_k import top

WORD = r"(?u)\b\w+\b"  # words of one letter, too


def bm25_rankings(
    queries: Sequence[str],
    documents: Sequence[str],
    depth: int,
    *,
    k1: float = 1.2,
    b: float = 0.75,
) -> tuple[np.ndarray, np.ndarray]:
    """The best documents of every query; see `Bm25`.

    Args:
      queries: texts.
      documents: texts; an empty one is never found.
      depth: documents of a query at most.
      k1: how slowly further occurrences of a word stop to count.
      b: how much long documents are held back, from 0 to 1.

    Returns:
      As `Bm25.search`.

    Raises:
      UserError: the library is not installed, or depth is below 1.
    """
    return Bm25(documents, k1=k1, b=b).search(queries, depth)[:2]


class Bm25:
    """Documents, ranked for queries by BM25 in Lucene's form.

    A document's score is the sum over the query's words of log(1 + (N - n + 0.5) / (n + 0.5)) times
    f / (f + k1 (1 - b + b length / mean length)), where n of N documents have the word, this one f
    times. Words are runs of letters and digits in lower case; none is left out or stemmed.

    Args:
      documents: texts; an empty one is never found.
      k1: how slowly further occurrences of a word stop to count.
      b: how much long documents are held back, from 0 to 1.

    Raises:
      UserError: the library is not installed.
    """

    def __init__(self, documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75):
        self._library, self._index = _library(), None
        self._documents = len(documents)
        words = _words(self._library, documents)
        if any(words):
            self._index = self._library.BM25(method="lucene", k1=k1, b=b, backend="numpy")
            self._index.index(words, show_progress=False)

    def search(
        self, queries: Sequence[str], depth: int, right: Sequence[Sequence[int]] = ()
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best documents of every query.

        Args:
          queries: texts.
          depth: documents of a query at most.
          right: for each query some documents; (): none.

        Returns:
          Indices of documents, int32 [Q, depth], best first, of equal scores the earlier document;
          and their scores, float32 [Q, depth]. Documents without a word of the query are not
          ranked: behind the last one that has, the index is -1 and the score -inf. And the best
          score of the documents in `right`, found or not, float32 [Q]; NaN where there are none.

        Raises:
          UserError: depth is below 1.
        """
        if depth < 1:
            raise UserError(f"the depth of a BM25 ranking is {depth}; it must be at least 1.")
        indices = np.full((len(queries), depth), -1, np.int32)
        scores = np.full((len(queries), depth), -np.inf, np.float32)
        best = np.array([0.0 if len(found) else np.nan for found in right], np.float32)
        for number, query in enumerate(_words(self._library, queries)):
            known = [] if self._index is None else self._index.get_tokens_ids(query)
            if self._index is None or not known:
                continue
            values = self._index.get_scores_from_ids(known)  # [D]
            if right and len(right[number]):
                best[number] = values[list(right[number])].max()
            found, values = top(values, depth)
            indices[number, : len(found)], scores[number, : len(found)] = found, values
        return indices, scores, best

    @property
    def _width(self) -> int:
        """W."""
        return 1 if self._index is None else len(self._index.scores["indptr"]) - 1

    def weights(self) -> scipy.sparse.csr_array:
        """What each word adds to a document's score when a query has it, float32 [D, W]."""
        if self._index is None:
            return scipy.sparse.csr_array((self._documents, self._width), dtype=np.float32)
        found = self._index.scores
        lists = (found["data"], found["indices"], found["indptr"])
        whole = scipy.sparse.csc_array(lists, shape=(self._documents, self._width))
        return scipy.sparse.csr_array(whole.tocsr(), dtype=np.float32)

    def counts(self, queries: Sequence[str]) -> scipy.sparse.csr_array:
        """How often queries have each word, float32 [Q, W]; times `weights` they are the scores."""
        rows = [
            [] if self._index is None else self._index.get_tokens_ids(words)
            for words in _words(self._library, queries)
        ]
        pointers = np.cumsum([0, *map(len, rows)])
        columns = np.array([column for row in rows for column in row], np.int64)
        ones = np.ones(len(columns), np.float32)
        out = scipy.sparse.csr_array((ones, columns, pointers), shape=(len(rows), self._width))
        out.sum_duplicates()
        return out


def _library() -> Any:
    try:
        import bm25s  # here, not above: it starts jax's backend, which --distributed must do first
    except ImportError:
        raise UserError(
            "BM25 needs the library bm25s, which is not installed; install the extra "
            "big_retrieval[bm25]."
        ) from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it tells of every index
    return bm25s


def _words(library: Any, texts: Sequence[str]) -> list[list[str]]:
    return library.tokenize(
        list(texts), token_pattern=WORD, stopwords=[], return_ids=False, show_progress=False
    )
