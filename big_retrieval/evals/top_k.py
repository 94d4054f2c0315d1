"""Exact top-k of many scores, with one rule for ties."""

import numpy as np

from big_retrieval.errors import UserError

GROUPED = 64  # scores per group; the first comparison uses only the largest score of a group


def top(
    scores: np.ndarray, depth: int, documents: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents with the best scores above 0; for equal scores, lower indices first.

    Sorts only candidates: if the largest scores of `depth` groups reach a bound, at least `depth`
    scores do, and no score below the bound is needed.

    Args:
      scores: [n], without NaN.
      documents: document indices, [n]; None for 0 to n - 1.

    Returns:
      Document indices, best first, and their scores, [at most depth].
    """
    least = _bound(scores, depth)
    hits = np.flatnonzero(scores >= least if least > 0 else scores > 0)
    values = scores[hits]
    if len(hits) > depth:  # keeps all ties of the last score, for the sort below
        keep = np.flatnonzero(values >= np.partition(values, -depth)[-depth])
        hits, values = hits[keep], values[keep]
    if documents is not None:
        hits = documents[hits]
    order = np.lexsort((hits, -values))[:depth]
    return hits[order], values[order]


def _bound(scores: np.ndarray, depth: int) -> float:
    """Returns a bound that at least `depth` scores reach; 0 if there are too few groups."""
    groups = len(scores) // GROUPED
    if groups <= depth:
        return 0.0
    largest = scores[: groups * GROUPED].reshape(GROUPED, groups).max(axis=0)  # [groups]
    return float(np.partition(largest, -depth)[-depth])


def check_depth(depth: int) -> None:
    """Raises a UserError if a search depth is below 1."""
    if depth < 1:
        raise UserError(f"the depth of a search is {depth}; it must be at least 1.")
