"""The best of many scores, exactly, with one rule for ties."""

import numpy as np

from big_retrieval.errors import UserError

GROUPED = 64  # scores of which only the largest is looked at first


def top(
    scores: np.ndarray, depth: int, numbers: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The documents with the best scores above 0; of equal scores the lower number first.

    Sorts only what can be among them: `depth` groups of scores whose largest reaches a bound hold
    as many scores that do, so that nothing below it is needed.

    Args:
      scores: [n], without NaN.
      depth: documents at most.
      numbers: [n], of the documents; None: their places.

    Returns:
      Numbers of documents, best first, and their scores: [d], d <= depth.
    """
    least = _bound(scores, depth)
    found = np.flatnonzero(scores >= least if least > 0 else scores > 0)
    values = scores[found]
    if len(found) > depth:  # all that equal the last one stay, so that the lower numbers win
        keep = np.flatnonzero(values >= np.partition(values, -depth)[-depth])
        found, values = found[keep], values[keep]
    if numbers is not None:
        found = numbers[found]
    order = np.lexsort((found, -values))[:depth]
    return found[order], values[order]


def _bound(scores: np.ndarray, depth: int) -> float:
    """A score that at least `depth` of them reach; 0 where it is not worth looking for one."""
    groups = len(scores) // GROUPED
    if groups <= depth:
        return 0.0
    largest = scores[: groups * GROUPED].reshape(GROUPED, groups).max(axis=0)  # [groups]
    return float(np.partition(largest, -depth)[-depth])


def check_depth(depth: int) -> None:
    """Raises a UserError where a search is asked for nothing."""
    if depth < 1:
        raise UserError(f"the depth of a search is {depth}; it must be at least 1.")
