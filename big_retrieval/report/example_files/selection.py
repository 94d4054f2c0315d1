"""Rules that select queries, documents and words for examples, and their JSON values."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.sparse.listing import shared

SPREAD, DEEPEST = 5, 4  # examples per group and direction
TOP = 5  # documents per example
MATCHED = 5  # words per document, of lexical models


def group_content(
    name: str, rule: str, queries: np.ndarray, example: Callable[[int], dict[str, Any]]
) -> dict[str, Any]:
    """Returns a group of examples: the rule that selected its queries, and `example` of each."""
    return {"name": name, "how": rule, "examples": [example(query) for query in queries.tolist()]}


def rounded(score: float) -> float | None:
    """Rounds a score to 6 decimals; None if it is not finite."""
    return round(float(score), 6) if np.isfinite(score) else None


def worst(values: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the largest finite values [Q], at most one per owner [Q].

    Returns:
      int64 [at most `count`], largest value first; the first one of equal values.
    """
    order = np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")
    order = order[np.isfinite(values[order])]
    _, first = np.unique(owners[order], return_index=True)  # of each owner
    return order[np.sort(first)][:count]


def best_first(scores: np.ndarray, is_positive: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the best documents, int64 [min(count, D)].

    As in ranks, negatives come first among equal scores, and NaN counts against the positives.

    Args:
      scores: [D].
      is_positive: bool [D].
      count: maximum number of documents.
    """
    count = min(count, len(scores))
    keys = -np.where(np.isnan(scores), np.where(is_positive, -np.inf, np.inf), scores)  # [D]
    limit = np.partition(keys, count - 1)[count - 1] if count else -np.inf
    near = np.flatnonzero(keys <= limit)
    return near[np.lexsort((near, is_positive[near], keys[near]))][:count]


def term_names(
    encoder: Encoder, field: str, embeddings: Embeddings, readers: Iterable[FieldReader]
) -> Sequence[str]:
    """Returns the names of the V terms of lexical embeddings; empty for dense ones."""
    terms = encoder.terms(field) if scipy.sparse.issparse(embeddings) else None
    tokenizers = (reader.tokenizer for reader in readers if reader.tokenizer is not None)
    return () if terms is None else terms.names(next(tokenizers, None))


def matched_words(query: Embeddings, document: Embeddings, words: Sequence[str]) -> list[list[Any]]:
    """Returns the words with the largest shares of a score, [word, share] each, largest first.

    Args:
      query: CSR [1, V].
      document: CSR [1, V].
      words: names of the V terms.
    """
    matched = shared(query, document, words).words[:MATCHED]
    return [[word, round(share, 4)] for word, _, share in matched if np.isfinite(share)]
