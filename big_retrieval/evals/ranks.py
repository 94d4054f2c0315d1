"""Ranks of the right answers, in chunks of queries, with ties against the model."""

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.encoding import Encoder

Score = Callable[[jax.Array, jax.Array], jax.Array]


@lru_cache(maxsize=32)
def _ranker(score: Score) -> Callable[..., jax.Array]:
    def rank(queries: jax.Array, ids: jax.Array, documents: jax.Array, owners: jax.Array):
        scores = score(queries, documents)  # [C, D]
        right = ids[:, None] == owners[None, :]  # [C, D]
        best = jnp.max(jnp.where(right, scores, -jnp.inf), axis=1, keepdims=True)  # [C, 1]
        # Not "scores >= best": a NaN compares false both ways and must count against the model.
        ahead = ~right & ~(scores < best)
        return 1 + jnp.sum(ahead, axis=1)  # [C]

    return rank


def by_chunks(
    function: Callable[..., jax.Array],
    queries: np.ndarray,
    query_ids: np.ndarray,
    *whole: jax.Array,
    encoder: Encoder,
    chunk: int,
) -> np.ndarray:
    """A function of some queries and all documents, `chunk` queries at a time.

    Args:
      function: jit-able, of (points [C, M, N], ids [C], *whole) to [C, ...].
      queries: points [Q, M, N].
      query_ids: [Q]; padding rows get -1.
      *whole: what `encoder.whole` gives.
      encoder: knows the devices.
      chunk: queries at a time.

    Returns:
      [Q, ...].
    """
    multiple = encoder.row_multiple()
    size = -(-min(chunk, len(queries)) // multiple) * multiple
    out = []
    for start in range(0, len(queries), size):
        part, ids = queries[start : start + size], query_ids[start : start + size]
        missing = size - len(part)
        rows = [
            np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]),
            np.concatenate([ids, np.full(missing, -1, ids.dtype)]),
        ]
        out.append(encoder.map_rows(function, rows, *whole)[: len(part)])
    return np.concatenate(out)


def ranks(
    queries: np.ndarray,
    query_ids: np.ndarray,
    documents: np.ndarray,
    document_ids: np.ndarray,
    *,
    score: Score,
    encoder: Encoder,
    chunk: int,
) -> np.ndarray:
    """For each query the rank, from 1, of its best-placed right document.

    A wrong document with the same score as the right one ranks before it, so that a model which
    scores everything alike gets no better than chance. The scores of `chunk` queries against all
    documents are held at a time, spread over the devices.

    Args:
      queries: points [Q, M, N].
      query_ids: [Q]; a document is right for a query when their ids are equal.
      documents: points [D, M, N].
      document_ids: [D].
      score: a topology's score on blocks.
      encoder: knows the devices.
      chunk: queries at a time.

    Returns:
      int64 [Q].
    """
    whole = encoder.whole(documents), encoder.whole(document_ids)
    found = by_chunks(
        _ranker(score), queries, query_ids, *whole, encoder=encoder, chunk=chunk
    )  # [Q]
    return found.astype(np.int64)
