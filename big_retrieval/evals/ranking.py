"""Ranking metrics with graded relevance. Ties count against the model: the worst goes first."""

from typing import Literal

import numpy as np

from big_retrieval.errors import UserError

Gain = Literal["exponential", "linear"]


def ndcg(scores: np.ndarray, grades: np.ndarray, k: int, gain: Gain = "exponential") -> np.ndarray:
    """Normalised discounted cumulative gain of the first k documents of every query.

    Gains are 2^grade - 1, or the grade itself; the one at rank r counts 1 / log2(r + 1). The best
    order of all documents of the query gives 1.

    Args:
      scores: [queries, documents], higher is better; NaN is an error.
      grades: [queries, documents], 0 and more; 0 where nobody judged.
      k: ranks that count.
      gain: of a grade.

    Returns:
      [queries], NaN for queries without a document of a grade above 0.

    Raises:
      UserError: shapes that differ, NaN among the scores, or negative grades.
    """
    if scores.shape != grades.shape or scores.ndim != 2:
        raise UserError(f"scores {scores.shape} and grades {grades.shape} must be one 2-D shape.")
    if np.isnan(scores).any() or not (grades >= 0).all():
        raise UserError("scores must not be NaN, grades not negative.")
    gains = np.exp2(grades) - 1 if gain == "exponential" else np.asarray(grades, float)
    order = np.lexsort((gains, -scores), axis=1)[:, :k]  # ties: the smallest gain first
    discounts = 1 / np.log2(np.arange(order.shape[1]) + 2)
    found = np.take_along_axis(gains, order, 1) @ discounts
    best = -np.sort(-gains, axis=1)[:, :k] @ discounts
    return np.divide(found, best, out=np.full(len(best), np.nan), where=best > 0)
