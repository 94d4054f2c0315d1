"""From scores to the grades in rank order that `graded` takes.

Documents with equal scores: by default the lower grade goes first, so that a tie counts against the
model; a score of NaN does, too. Other tools break ties otherwise, which `order` can do as well.
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
      grades: of the documents, [q, depth]; 0 where nobody judged.
      judged: all grades of each query, [q, J], filled up with 0.
    """

    queries: np.ndarray
    found: np.ndarray
    scores: np.ndarray
    grades: np.ndarray
    judged: np.ndarray


def grades_of(documents: np.ndarray, judged: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """The grades of ranked documents.

    Args:
      documents: int [Q, depth], numbers of documents; -1: none.
      judged: int [Q, J], numbers of the judged documents of each query; filled up with -1.
      grades: [Q, J], their grades.

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
    keys, values = keys[order], np.asarray(grades, np.float64)[known][order]
    if (keys[1:] == keys[:-1]).any():
        raise UserError("a document is judged twice for the same query; keep one grade.")
    if not len(keys):
        return np.zeros(documents.shape)
    wanted = queries * base + documents  # [Q, depth]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    present = (keys[found] == wanted) & (documents >= 0)
    return np.where(present, values[found], 0.0)


def order(scores: np.ndarray, grades: np.ndarray, ties: Ties = "against") -> np.ndarray:
    """The order of the documents of every query, best score first.

    Args:
      scores: [Q, D], higher is better; -inf at the end where a query has fewer documents. One that
        is NaN stands last where it has a grade, else first.
      grades: [Q, D], 0: not judged.
      ties: of equal scores the lower grade first ("against"), the earlier one ("given"), or the one
        with the larger key, [Q, D] of numbers or texts (the documents' ids: trec_eval's order).

    Returns:
      int64 [Q, D], indices into the second axis.

    Raises:
      UserError: the shapes differ.
    """
    scores, grades = np.asarray(scores, np.float64), np.asarray(grades, np.float64)
    keys = grades if isinstance(ties, str) else np.asarray(ties)
    if not scores.shape == grades.shape == keys.shape or scores.ndim != 2:
        raise UserError(
            f"scores {scores.shape}, grades {grades.shape} and keys {keys.shape} must be one "
            "2-D shape."
        )
    scores = np.where(np.isnan(scores), np.where(grades > 0, -np.inf, np.inf), scores)
    if isinstance(ties, str):
        second = grades if ties == "against" else np.zeros(grades.shape)
    else:
        second = -np.unique(keys, return_inverse=True)[1].reshape(keys.shape)  # texts have no minus
    return np.lexsort((second, -scores), axis=1)
