"""Scores of queries against all documents: ranks of right answers, the best documents."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.evals.same import common, most_answers
from big_retrieval.inference.encoder import Embeddings, Encoder

Score = Callable[[jax.Array, jax.Array], jax.Array]
FIRST = 10  # ranks that count for MRR and nDCG
NDCG, MRR = f"nDCG@{FIRST}", f"MRR@{FIRST}"


class Ranks(NamedTuple):
    """Where queries find their right documents.

    Attributes:
      best: the rank, from 1, of the best-placed right document, int64 [Q]; of a query without any,
        one more than there are documents.
      precision: R-precision: the share of right documents among the first P, where P is the number
        of right documents of the query; float64 [Q], 0 of a query without any.
      ndcg: nDCG of the first `FIRST` documents, right ones having the gain 1; float64 [Q].
      answered: whether there is a right document, bool [Q].
    """

    best: np.ndarray
    precision: np.ndarray
    ndcg: np.ndarray
    answered: np.ndarray


@lru_cache(maxsize=32)
def _ranker(score: Score, most: int, keys: int = 1) -> Callable[..., Any]:
    """A function of queries, what is right for them, documents and their owners.

    What is right are `keys` owners of documents, and then numbers of further documents.

    It gives, [C] each, the rank of the best right document, how many right documents are among the
    first P, and P; and whether there is a right one at each of the first `FIRST` ranks, [C, FIRST],
    or fewer if there are fewer documents. `most` is the largest P.
    """

    def rank(queries: jax.Array, wanted: jax.Array, documents: jax.Array, owners: jax.Array):
        scores = score(queries, documents)  # [C, D]
        right = answers(wanted[:, :keys], owners)  # [C, D]
        further = jnp.where(wanted[:, keys:] < 0, len(owners), wanted[:, keys:])  # [C, E]
        right = right.at[jnp.arange(len(right))[:, None], further].set(True, mode="drop")
        best = jnp.max(jnp.where(right, scores, -jnp.inf), axis=1, keepdims=True)  # [C, 1]
        # Not "scores >= best": a NaN compares false both ways and must count against the model.
        ahead = ~right & ~(scores < best)
        count = jnp.sum(right, axis=1)  # [C]
        first = 1 + jnp.sum(ahead, axis=1)  # [C]
        places = jnp.arange(1, 1 + min(FIRST, len(owners)))
        if most <= 1:
            hits = (first[:, None] == places) & (count > 0)[:, None]
            return first, jnp.where(first == 1, count, 0), count, hits
        worst = jnp.where(right, -jnp.inf, jnp.inf)  # of a NaN
        scores = jnp.where(jnp.isnan(scores), worst, scores)
        hits = _hits(scores, right, len(places))
        top = jax.lax.top_k(scores, most)[0]  # [C, most]
        last = jnp.take_along_axis(top, jnp.maximum(count, 1)[:, None] - 1, axis=1)  # [C, 1]
        above, alike = scores > last, scores == last
        # Of the documents with the last score wrong ones come first.
        left = count - jnp.sum(above, axis=1) - jnp.sum(alike & ~right, axis=1)
        found = jnp.sum(above & right, axis=1) + jnp.maximum(left, 0)
        return first, jnp.where(count > 0, found, 0), count, hits

    return rank


def answers(wanted: Any, owners: Any) -> Any:
    """Which documents are right for which queries: bool [Q, D].

    Args:
      wanted: owners of the right ones, [Q] or [Q, K].
      owners: of the documents, [D]; or [D, L], one in common makes a document right. Negative
        ones are none.
    """
    if owners.ndim == 1:
        return (wanted if wanted.ndim == 2 else wanted[:, None]) == owners[None, :]
    return common(wanted, owners)


def _hits(scores: jax.Array, right: jax.Array, first: int) -> jax.Array:
    """Whether there is a right document at each of the `first` K ranks, [C, K].

    Of documents with equal scores wrong ones come first.

    Args:
      scores: [C, D].
      right: which documents are right, [C, D].
      first: K.
    """
    top, found = jax.lax.top_k(scores, first)  # [C, K] each
    known = jnp.take_along_axis(right, found, axis=1)[:, None, :]  # [C, 1, K]
    above, alike = (how(top[:, None, :], top[:, :, None]) for how in (jnp.greater, jnp.equal))
    wrong = jnp.sum(alike & ~known, axis=2)  # [C, K]: with the score of each rank
    # Documents with the last score are not all among the K.
    last = jnp.min(top, axis=1, keepdims=True)  # not top[:, -1:], as in `best_of`
    wrong_last = jnp.sum((scores == last) & ~right, axis=1, keepdims=True)  # [C, 1]
    wrong = jnp.where(top == last, wrong_last, wrong)
    left = jnp.arange(1, 1 + first) - jnp.sum(above, axis=2) - wrong
    among = jnp.sum(above & known, axis=2) + jnp.maximum(left, 0)  # of the first 1, 2, ..., K
    return jnp.diff(among, axis=1, prepend=0) > 0


def _given(scores: jax.Array, nothing: jax.Array) -> jax.Array:
    """Scores that are known already."""
    del nothing
    return scores


class DocumentScorer:
    """Documents laid out for scoring, once: on every device, or sparse ones by term on the host.

    Args:
      documents: embeddings [D, M, N], or CSR [D, V].
      score: a topology's score on blocks; of CSR documents inner products are the scores.
      encoder: knows the devices.
      chunk: queries scored at a time, whose scores against all documents are held.
    """

    def __init__(self, documents: Embeddings, *, score: Score, encoder: Encoder, chunk: int):
        self._encoder, self._chunk, self._count = encoder, chunk, documents.shape[0]
        self._sparse = documents.T.tocsr() if scipy.sparse.issparse(documents) else None  # [V, D]
        dense = self._sparse is None
        self._whole = encoder.whole(documents) if dense else np.zeros(1, np.float32)
        self._score = score if dense else _given

    def map(
        self,
        make: Callable[[Score], Callable[..., Any]],
        queries: Embeddings,
        query_ids: np.ndarray,
        *whole: Any,
    ) -> Any:
        """A function of some queries and all documents, `chunk` queries at a time.

        Args:
          make: from how embeddings are scored to a jit-able function of (embeddings [C, M, N], ids
            [C, ...], documents, *whole) to arrays [C, ...]; the same function for the same score.
          queries: embeddings [Q, M, N], or CSR [Q, V].
          query_ids: [Q, ...]; padding rows get -1.
          *whole: what `encoder.whole` gives.

        Returns:
          The function's arrays [Q, ...].
        """
        multiple, rows = self._encoder.row_multiple(), queries.shape[0]
        function = make(self._score)
        size = -(-min(self._chunk, rows) // multiple) * multiple
        out = []
        for start in range(0, rows, size):
            part: Any = queries[start : start + size]
            ids = query_ids[start : start + size]
            if self._sparse is not None:
                part = (part @ self._sparse).toarray()  # [C, D]
            missing = size - len(part)
            padded = [
                np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]),
                np.concatenate([ids, np.full((missing, *ids.shape[1:]), -1, ids.dtype)]),
            ]
            found = self._encoder.map_rows(function, padded, self._whole, *whole)
            out.append(jax.tree.map(partial(_head, rows=len(part)), found))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *out)

    def best(
        self,
        queries: Embeddings,
        depth: int,
        relevance: Callable[[int], np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best documents of each query, best first.

        Ties: without relevance, the document with the lower number first; with it, the one of lower
        relevance, also among those that do not fit into the depth any more. A score of NaN is the
        lowest.

        Args:
          queries: embeddings [Q, M, N], or CSR [Q, V].
          depth: documents of a query, at most.
          relevance: of the documents [D] for a query's number, to break ties against the model.

        Returns:
          int32 [Q, min(depth, D)] and their scores.
        """
        depth = min(depth, self._count)
        ids = np.arange(queries.shape[0], dtype=np.int32)
        found, scores, alike = self.map(partial(best_of, depth=depth), queries, ids)
        if relevance is None:
            return found, scores
        found, scores = np.array(found), np.array(scores)
        tied = np.flatnonzero((scores[:, 1:] == scores[:, :-1]).any(1) | (alike > 0))
        for start in range(0, len(tied), self._chunk):
            part = tied[start : start + self._chunk]
            rows = self.map(_all, queries[part], ids[part])  # [C, D]
            for query, row in zip(part.tolist(), rows, strict=True):
                first = order(row[None], relevance(query)[None])[0, :depth]
                found[query], scores[query] = first, row[first]
        return found, scores


def _head(x: np.ndarray, rows: int) -> np.ndarray:
    return x[:rows]


def ranks(
    queries: Embeddings,
    query_ids: np.ndarray,
    documents: Embeddings,
    document_ids: np.ndarray,
    *,
    score: Score,
    encoder: Encoder,
    chunk: int,
    further: np.ndarray | None = None,
) -> Ranks:
    """Where each query finds its right documents.

    A wrong document with the same score as the right one ranks before it, so that a model which
    scores everything alike gets no better than chance. The scores of `chunk` queries against all
    documents are held at a time, sharded over the devices.

    Args:
      queries: embeddings [Q, M, N], or CSR [Q, V].
      query_ids: [Q]; a document is right for a query when their ids are equal. Or [Q, K], filled
        up with -1: when they have one in common.
      documents: embeddings [D, M, N], or CSR [D, V].
      document_ids: [D], or [D, L] as well.
      score: a topology's score on blocks.
      encoder: knows the devices.
      chunk: queries at a time.
      further: numbers of documents that are right as well, int64 [Q, E], filled up with -1; None:
        there are none.
    """
    scorer = DocumentScorer(documents, score=score, encoder=encoder, chunk=chunk)
    wanted = np.asarray(query_ids).reshape(len(query_ids), -1)  # [Q, K]
    keys, several = wanted.shape[1], document_ids.ndim == 2
    if further is not None:
        wanted = np.concatenate([wanted, further.astype(wanted.dtype)], axis=1)  # [Q, 1 + E]
    counts = np.unique(document_ids, return_counts=True)[1]
    most = most_answers(wanted[:, :keys], document_ids) if several else int(counts.max(initial=1))
    most = max(most, 1) + wanted.shape[1] - keys
    make = partial(_ranker, most=min(most, len(document_ids)), keys=keys)
    best, found, count, hits = scorer.map(make, queries, wanted, encoder.whole(document_ids))
    all_right = np.arange(FIRST) < count[:, None]  # [Q, FIRST]: of the best ranking
    ndcg = graded_metrics(hits, all_right, [NDCG])[NDCG]
    return Ranks(best.astype(np.int64), found / np.maximum(count, 1), ndcg, count > 0)


@lru_cache(maxsize=32)
def best_of(score: Score, depth: int) -> Callable[..., Any]:
    """A function of embeddings [C, M, N], ids [C] and documents [D, M, N]: the best `depth` of
    them.

    It gives their numbers, best first and of equal scores the lower one, their scores (NaN counts
    as -inf), [C, depth] each, and how many more documents have the last score, [C].
    """

    def top(queries: jax.Array, ids: jax.Array, documents: jax.Array) -> Any:
        scores = _without_nan(score(queries, documents))  # [C, D]
        best, found = jax.lax.top_k(scores, depth)  # [C, depth] each
        # Not best[:, -1:]: XLA on CPUs would then sort all documents, twenty times as slow.
        last = jnp.min(best, axis=1, keepdims=True)
        alike = jnp.sum(scores == last, axis=1) - jnp.sum(best == last, axis=1)  # [C]
        return found, best, alike

    return top


@lru_cache(maxsize=32)
def _all(score: Score) -> Callable[..., jax.Array]:
    return lambda queries, ids, documents: _without_nan(score(queries, documents))


def _without_nan(scores: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(scores), -jnp.inf, scores)


def class_ranks(scores: Any, labels: Any, same: np.ndarray | None = None) -> Any:
    """The rank of each row's class, from 1, [n]; ties and NaN count against the model.

    Args:
      scores: [n, C] of numpy or jax.
      labels: the classes, [n].
      same: the first class with the names of each one, [C]: where the scores of such classes are
        equal, too, the first one goes first, as by argmax; None: all names differ.
    """
    right = scores[np.arange(len(labels)), labels][:, None]  # [n, 1]
    ahead = ~(scores < right)  # [n, C], itself counted
    if same is not None:
        twins = (same[None, :] == same[labels][:, None]) & np.isclose(scores, right, atol=1e-6)
        ahead = np.where(twins, np.arange(len(same)) <= labels[:, None], ahead)
    return ahead.sum(axis=1)
