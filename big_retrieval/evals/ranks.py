"""Scores of queries against all documents: ranks of positives, and the best documents."""

import operator
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.evals.positives import Positives
from big_retrieval.inference.encoder import Embeddings, Encoder

Score = Callable[[jax.Array, jax.Array], jax.Array]
FIRST = 10  # ranks that count for MRR and nDCG
NDCG, MRR = f"nDCG@{FIRST}", f"MRR@{FIRST}"
SCORES = 2**24  # maximum number of scores in memory


class Ranks(NamedTuple):
    """Ranks of the queries' positives."""

    best: np.ndarray  # rank (from 1) of the best positive, int64 [Q]; D + 1 without a positive
    # R-precision, the share of positives among the first P documents of a query with P positives;
    # float64 [Q], 0 without a positive
    precision: np.ndarray
    ndcg: np.ndarray  # nDCG of the first `FIRST` documents with gain 1 for positives, float64 [Q]
    answered: np.ndarray  # True if the query has a positive, bool [Q]


@lru_cache(maxsize=32)
def _ranker(score: Score) -> Callable[..., Any]:
    """Makes a function that ranks the positives of C queries among D documents.

    Its inputs are queries, the indices of their positives ([C, E], padded with -1) and documents.
    With P the number of positives of a query, it returns the rank of the best positive, the number
    of positives among the first P documents, and P, [C] each; and True for each of the first
    `FIRST` ranks that has a positive, [C, min(FIRST, D)].
    """

    def rank(queries: jax.Array, positives: jax.Array, documents: jax.Array):
        scores = score(queries, documents)  # [C, D]
        is_positive = positive_mask(positives, scores.shape[1])  # [C, D]
        best = jnp.max(jnp.where(is_positive, scores, -jnp.inf), axis=1, keepdims=True)  # [C, 1]
        # Not "scores >= best": a NaN compares false both ways and must count against the model.
        ahead = ~is_positive & ~(scores < best)
        count = jnp.sum(is_positive, axis=1)  # [C]
        first = 1 + jnp.sum(ahead, axis=1)  # [C]
        ranks = jnp.arange(1, 1 + min(FIRST, scores.shape[1]))
        max_count = min(positives.shape[1], scores.shape[1])
        if max_count <= 1:
            hits = (first[:, None] == ranks) & (count > 0)[:, None]
            return first, jnp.where(first == 1, count, 0), count, hits
        worst = jnp.where(is_positive, -jnp.inf, jnp.inf)  # replaces NaN
        scores = jnp.where(jnp.isnan(scores), worst, scores)
        hits = _hits(scores, is_positive, len(ranks))
        top = jax.lax.top_k(scores, max_count)[0]
        last = jnp.take_along_axis(top, jnp.maximum(count, 1)[:, None] - 1, axis=1)  # [C, 1]
        above, alike = scores > last, scores == last
        # Among the documents with the last score, negatives come first.
        remaining = count - jnp.sum(above, axis=1) - jnp.sum(alike & ~is_positive, axis=1)
        among = jnp.sum(above & is_positive, axis=1) + jnp.maximum(remaining, 0)
        return first, jnp.where(count > 0, among, 0), count, hits

    return rank


def positive_mask(positives: jax.Array, documents: int) -> jax.Array:
    """Converts indices of positives [C, E], padded with -1, to a mask bool [C, documents]."""
    if positives.shape[1] == 1:
        return positives == jnp.arange(documents)
    columns = jnp.where(positives < 0, documents, positives)
    mask = jnp.zeros((len(positives), documents), bool)
    return mask.at[jnp.arange(len(positives))[:, None], columns].set(True, mode="drop")


def _hits(scores: jax.Array, is_positive: jax.Array, first: int) -> jax.Array:
    """Returns True for each of the first K ranks that has a positive, negatives first, [C, K]."""
    top, documents = jax.lax.top_k(scores, first)  # [C, K] each
    is_hit = jnp.take_along_axis(is_positive, documents, axis=1)[:, None, :]  # [C, 1, K]
    above = top[:, None, :] > top[:, :, None]
    alike = top[:, None, :] == top[:, :, None]
    negatives = jnp.sum(alike & ~is_hit, axis=2)  # [C, K]: negatives with the score of each rank
    # Some documents with the last score may not be among the K.
    last = jnp.min(top, axis=1, keepdims=True)  # not top[:, -1:], as in `best_of`
    last_negatives = jnp.sum((scores == last) & ~is_positive, axis=1, keepdims=True)  # [C, 1]
    negatives = jnp.where(top == last, last_negatives, negatives)
    remaining = jnp.arange(1, 1 + first) - jnp.sum(above, axis=2) - negatives
    among = jnp.sum(above & is_hit, axis=2) + jnp.maximum(remaining, 0)  # of the first 1, ..., K
    return jnp.diff(among, axis=1, prepend=0) > 0


def _as_scores(scores: jax.Array, documents: jax.Array) -> jax.Array:
    """Returns scores of lexical embeddings, which `DocumentScorer` has multiplied on the host."""
    del documents
    return scores


class DocumentScorer:
    """Documents prepared for scoring: dense on every device, CSR by term ([V, D]) on the host.

    Args:
      documents: embeddings [D, M, N], or CSR [D, V].
      score: a topology's score on blocks; unused for CSR documents (inner products).
      chunk: maximum number of queries scored at a time; fewer if `SCORES` scores are in memory.
    """

    def __init__(self, documents: Embeddings, *, score: Score, encoder: Encoder, chunk: int):
        self._encoder, self._count = encoder, documents.shape[0]
        self._chunk = max(1, min(chunk, SCORES // max(1, self._count)))
        self._sparse = documents.T.tocsr() if scipy.sparse.issparse(documents) else None  # [V, D]
        dense = self._sparse is None
        self._replicated = encoder.whole(documents) if dense else np.zeros(1, np.float32)
        self._score = score if dense else _as_scores

    def map(
        self,
        make: Callable[[Score], Callable[..., Any]],
        queries: Embeddings,
        query_ids: np.ndarray | Callable[[slice], np.ndarray],
        *replicated: Any,
    ) -> Any:
        """Maps a function over the queries, some at a time, each against all documents.

        Args:
          make: maps a score to a jit-able function of (embeddings [C, M, N], ids [C, ...],
            documents, *replicated) that returns arrays [C, ...]. It must return the same function
            for the same score, so that jax compiles the function once.
          queries: embeddings [Q, M, N], or CSR [Q, V].
          query_ids: [Q, ...], or a function that returns the ids of some queries; padding rows get
            -1.
          *replicated: arrays from `encoder.whole`.

        Returns:
          The function's arrays [Q, ...].
        """
        blocks = (arrays for _, arrays in self.blocks(make, queries, query_ids, *replicated))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)

    def blocks(
        self,
        make: Callable[[Score], Callable[..., Any]],
        queries: Embeddings,
        query_ids: np.ndarray | Callable[[slice], np.ndarray],
        *replicated: Any,
    ) -> Iterator[tuple[slice, Any]]:
        """Yields some queries and the function's arrays of them, as `map` concatenates them."""
        multiple, count = self._encoder.row_multiple(), queries.shape[0]
        function = make(self._score)
        size = -(-min(self._chunk, count) // multiple) * multiple
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            block: Any = queries[rows]
            ids = query_ids(rows) if callable(query_ids) else query_ids[rows]
            if self._sparse is not None:
                block = (block @ self._sparse).toarray()  # [C, D]
            missing = size - len(block)
            padded = [
                np.concatenate([block, np.zeros((missing, *block.shape[1:]), block.dtype)]),
                np.concatenate([ids, np.full((missing, *ids.shape[1:]), -1, ids.dtype)]),
            ]
            arrays = self._encoder.map_rows(function, padded, self._replicated, *replicated)
            yield rows, jax.tree.map(operator.itemgetter(slice(len(block))), arrays)

    def best(
        self,
        queries: Embeddings,
        depth: int,
        relevance: Callable[[int], np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of each query, best first.

        Among equal scores, including scores beyond `depth`, the less relevant document comes first.
        Without `relevance`, the lower index comes first. NaN is the lowest score.

        Args:
          relevance: maps a query index to the relevance of all documents [D].

        Returns:
          int32 [Q, min(depth, D)] and their scores.
        """
        depth = min(depth, self._count)
        ids = np.arange(queries.shape[0], dtype=np.int32)
        hits, scores, alike = self.map(partial(best_of, depth=depth), queries, ids)
        if relevance is None:
            return hits, scores
        hits, scores = np.array(hits), np.array(scores)
        tied = np.flatnonzero((scores[:, 1:] == scores[:, :-1]).any(1) | (alike > 0))
        for start in range(0, len(tied), self._chunk):
            indices = tied[start : start + self._chunk]
            rows = self.map(_all, queries[indices], ids[indices])  # [C, D]
            for query, row in zip(indices.tolist(), rows, strict=True):
                # Not scores[query, -1]: the rounding depends on the number of queries.
                among = np.flatnonzero(row >= np.partition(row, -depth)[-depth])
                first = among[order(row[among][None], relevance(query)[among][None])[0, :depth]]
                hits[query], scores[query] = first, row[first]
        return hits, scores


def ranks(
    queries: Embeddings,
    documents: Embeddings,
    positives: Positives,
    *,
    score: Score,
    encoder: Encoder,
    chunk: int,
) -> Ranks:
    """Ranks all documents for each query.

    Among equal scores, negatives come first: a model with constant scores is not better than
    chance. The scores of `chunk` queries are in memory, sharded over the devices. Queries and
    documents are embeddings [n, M, N], or CSR [n, V].
    """
    scorer = DocumentScorer(documents, score=score, encoder=encoder, chunk=chunk)
    best, among, count, hits = scorer.map(_ranker, queries, positives.padded)
    ideal = np.arange(FIRST) < count[:, None]  # [Q, FIRST]
    ndcg = graded_metrics(hits, ideal, [NDCG])[NDCG]
    return Ranks(best.astype(np.int64), among / np.maximum(count, 1), ndcg, count > 0)


@lru_cache(maxsize=32)
def best_of(score: Score, depth: int) -> Callable[..., Any]:
    """Makes a function of embeddings [C, M, N], ids [C] and documents [D, M, N].

    It returns the indices of the best documents (the lower index of equal scores first) and their
    scores (-inf for NaN), [C, depth] each, and the number of further documents with the last score,
    [C].
    """

    def top(queries: jax.Array, ids: jax.Array, documents: jax.Array) -> Any:
        scores = _without_nan(score(queries, documents))  # [C, D]
        best, indices = jax.lax.top_k(scores, depth)  # [C, depth] each
        # Not best[:, -1:]: XLA on CPUs would then sort all documents, twenty times as slow.
        last = jnp.min(best, axis=1, keepdims=True)
        alike = jnp.sum(scores == last, axis=1) - jnp.sum(best == last, axis=1)  # [C]
        return indices, best, alike

    return top


@lru_cache(maxsize=32)
def _all(score: Score) -> Callable[..., jax.Array]:
    return lambda queries, ids, documents: _without_nan(score(queries, documents))


def _without_nan(scores: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(scores), -jnp.inf, scores)


def class_ranks(scores: Any, labels: Any, same: np.ndarray | None = None) -> Any:
    """Returns the rank (from 1) of each row's class, [n]; ties and NaN count against the model.

    Args:
      scores: [n, C], numpy or jax.
      labels: class indices, [n].
      same: index of the first class with the same names for each class, [C]. Among such classes
        with equal scores the first one wins, as in argmax. None if all names differ.
    """
    label_scores = scores[np.arange(len(labels)), labels][:, None]  # [n, 1]
    ahead = ~(scores < label_scores)  # [n, C], including the class itself
    if same is not None:
        close = np.isclose(scores, label_scores, atol=1e-6)
        twins = (same[None, :] == same[labels][:, None]) & close
        ahead = np.where(twins, np.arange(len(same)) <= labels[:, None], ahead)
    return ahead.sum(axis=1)
