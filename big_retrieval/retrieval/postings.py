"""Adds the weighted values of a list to the scores of its documents, rounded as numpy rounds them.

scipy's compiled loops for products of sparse matrices need a third to a half of the time of
`numpy.add.at`, but only scipy's private module adds to an array that exists. They check no index.
"""

from typing import Any

import numpy as np

try:
    from scipy.sparse import _sparsetools  # type: ignore[attr-defined]
except ImportError:  # a later scipy
    _sparsetools = None

LOOPS: Any = _sparsetools
FIRST_ROW, ONE_ENTRY = np.zeros(1, np.int32), np.array([0, 1], np.int32)


def add_with_scipy(
    scores: np.ndarray,
    documents: np.ndarray,
    values: np.ndarray,
    weight: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Adds `weight * values` to the scores of documents in place; both steps round to float32.

    Args:
      scores: float32 [D].
      documents: ascending indices from 0 to D - 1, int32 [n]. An index out of range writes to
        memory that does not belong to `scores`.
      values: float32 [n].
      weight: float32 [1].
      ends: 0 and n, int32 [2].
    """
    if len(documents) == len(scores):  # a list of all documents is a row of values
        LOOPS.csr_matvecs(1, 1, len(scores), ONE_ENTRY, FIRST_ROW, weight, values, scores)
    else:
        LOOPS.csc_matvec(len(scores), 1, ends, documents, values, weight, scores)


def add_with_numpy(
    scores: np.ndarray,
    documents: np.ndarray,
    values: np.ndarray,
    weight: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Does what `add_with_scipy` does."""
    np.add.at(scores, documents, values * weight)


def scipy_rounds_twice() -> bool:
    """Returns True if scipy's loops exist and round the product and the sum like numpy.

    Compilers for some processors, such as ARM's, fuse both steps, which rounds once.
    """
    scores = np.random.default_rng(0).random(103, np.float32)
    for step in (1, 2):
        documents = np.arange(0, 103, step, dtype=np.int32)
        ends = np.array([0, len(documents)], np.int32)
        sums, expected = scores.copy(), scores.copy()
        add_with_numpy(expected, documents, 1 + scores[documents], 1 + scores[:1], ends)
        try:
            add_with_scipy(sums, documents, 1 + scores[documents], 1 + scores[:1], ends)
        except (AttributeError, TypeError, ValueError):  # a later scipy
            return False
        if not np.array_equal(sums, expected):
            return False
    return True


add_list = add_with_scipy if scipy_rounds_twice() else add_with_numpy
