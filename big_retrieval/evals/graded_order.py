"""From scores to the relevance in rank order that `graded` takes.

Documents with equal scores: by default the lower relevance goes first, so that a tie counts against
the model; a score of NaN does, too. Other tools break ties otherwise, which `order` can do as well.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from big_retrieval.errors import UserError

Ties = Literal["against", "given"] | np.ndarray


@dataclass(frozen=True)
class Ranked:
    """The rankings of some queries.

    Attributes:
      queries: their numbers, [q].
      found: numbers of the documents, best first, int [q, depth]; -1 behind the last one.
      scores: of the model, [q, depth].
      relevance: of the documents, [q, depth]; 0 where nobody judged.
      judged: all relevance of each query, [q, J], filled up with 0.
    """

    queries: np.ndarray
    found: np.ndarray
    scores: np.ndarray
    relevance: np.ndarray
    judged: np.ndarray


def relevance_of(documents: np.ndarray, judged: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """The relevance of ranked documents.

    Args:
      documents: int [Q, depth], numbers of documents; -1: none.
      judged: int [Q, J], numbers of the judged documents of each query; filled up with -1.
      relevance: [Q, J], their relevance.

    Returns:
      float64 [Q, depth], 0 for documents that were not judged.

    Raises:
      UserError: a document is judged twice for a query.
    """
    base = 2 + int(max(documents.max(initial=-1), judged.max(initial=-1)))
    queries = np.arange(len(judged), dtype=np.int64)[:, None]
    known = judged >= 0
    keys = (queries * base + judged)[known]
    order = np.argsort(keys)
    keys, values = keys[order], np.asarray(relevance, np.float64)[known][order]
    if (keys[1:] == keys[:-1]).any():
        raise UserError("a document is judged twice for the same query; keep one relevance.")
    if not len(keys):
        return np.zeros(documents.shape)
    wanted = queries * base + documents  # [Q, depth]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    present = (keys[found] == wanted) & (documents >= 0)
    return np.where(present, values[found], 0.0)


def order(scores: np.ndarray, relevance: np.ndarray, ties: Ties = "against") -> np.ndarray:
    """The order of the documents of every query, best score first.

    Args:
      scores: [Q, D], higher is better; -inf at the end where a query has fewer documents. One that
        is NaN stands last where it is relevant, else first.
      relevance: [Q, D], 0: not judged.
      ties: of equal scores the lower relevance first ("against"), the earlier one ("given"), or
        the one with the larger key, [Q, D] of numbers or texts (the documents' ids: the order of
        trec_eval).

    Returns:
      int64 [Q, D], indices into the second axis.

    Raises:
      UserError: the shapes differ.
    """
    scores, relevance = np.asarray(scores, np.float64), np.asarray(relevance, np.float64)
    keys = relevance if isinstance(ties, str) else np.asarray(ties)
    if not scores.shape == relevance.shape == keys.shape or scores.ndim != 2:
        raise UserError(
            f"scores {scores.shape}, relevance {relevance.shape} and keys {keys.shape} must be one "
            "2-D shape."
        )
    scores = np.where(np.isnan(scores), np.where(relevance > 0, -np.inf, np.inf), scores)
    if isinstance(ties, str):
        second = relevance if ties == "against" else np.zeros(relevance.shape)
    else:
        second = -np.unique(keys, return_inverse=True)[1].reshape(keys.shape)  # texts have no minus
    return np.lexsort((second, -scores), axis=1)
