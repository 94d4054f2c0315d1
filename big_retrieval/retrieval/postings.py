"""Posting lists of an inverted index, and their weighted sum with the rounding of numpy.

scipy's compiled loops for products of sparse matrices need a third of the time of `numpy.add.at`.
Only scipy's private module adds to an existing array, and it checks no index.
"""

from typing import Any

import numpy as np

try:
    from scipy.sparse import _sparsetools  # type: ignore[attr-defined]
except ImportError:  # not in a later scipy
    _sparsetools = None

LOOPS: Any = _sparsetools
FLOAT32 = np.dtype(np.float32)
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
    if len(documents) == len(scores):  # a list of all documents is a dense row
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
    """Computes the result of `add_with_scipy`."""
    np.add.at(scores, documents, values * weight)


def scipy_rounds_twice() -> bool:
    """Returns True if scipy's loops exist and round the product and the sum like numpy.

    Compilers for some processors, such as ARM's, fuse both operations into one rounding.
    """
    scores = np.random.default_rng(0).random(103, np.float32)
    for step in (1, 2):
        documents = np.arange(0, 103, step, dtype=np.int32)
        ends = np.array([0, len(documents)], np.int32)
        sums, expected = scores.copy(), scores.copy()
        add_with_numpy(expected, documents, 1 + scores[documents], 1 + scores[:1], ends)
        try:
            add_with_scipy(sums, documents, 1 + scores[documents], 1 + scores[:1], ends)
        except (AttributeError, TypeError, ValueError):  # not in a later scipy
            return False
        if not np.array_equal(sums, expected):
            return False
    return True


add_list = add_with_scipy if scipy_rounds_twice() else add_with_numpy


class PostingLists:
    """Documents and values of every term. Several threads may add lists to their own scores.

    Args:
      pointers: start of each list and end of the last one, int64 [V + 1], ascending.
      documents: document indices, ascending within a list, int32 [entries].
      values: float32 or float16 [entries]; None if all values are 1.
      count: D, number of documents.
    """

    def __init__(
        self, pointers: np.ndarray, documents: np.ndarray, values: np.ndarray | None, count: int
    ):
        lengths = np.diff(pointers)
        self._documents, self._values, self._count = documents, values, count
        self._bounds = np.stack([pointers[:-1], pointers[1:]], axis=1)  # [V, 2]
        self._ends = np.stack([0 * lengths, lengths], axis=1).astype(np.int32)  # [V, 2]
        self._ones = np.ones(0 if values is not None else lengths.max(initial=0), np.float32)
        self._checked = np.zeros(len(lengths), bool)  # lists whose document indices are in range

    def add(self, scores: np.ndarray, terms: np.ndarray, weights: np.ndarray) -> list[list[int]]:
        """Adds the lists of a query to scores [D] in place, in the order of its terms.

        Args:
          terms: from 0 to V - 1, int [k].
          weights: float32 [k].

        Returns:
          Start and end of each list.

        Raises:
          IndexError: a list has a document index out of range. Nothing was added.
        """
        self._check(terms)
        bounds = self._bounds[terms].tolist()
        for (start, stop), ends, weight in zip(
            bounds, self._ends[terms], weights[:, None], strict=True
        ):
            values = (
                self._ones[: stop - start] if self._values is None else self._values[start:stop]
            )
            if values.dtype != FLOAT32:
                values = values.astype(FLOAT32)
            add_list(scores, self._documents[start:stop], values, weight, ends)
        return bounds

    def _check(self, terms: np.ndarray) -> None:
        """Raises an IndexError if a list, at its first use, has a document out of range."""
        for term in terms[~self._checked[terms]].tolist():
            documents = self._documents[slice(*self._bounds[term])]
            # Read as unsigned, negative indices are too large, too.
            if len(documents) and documents.view(np.uint32).max() >= self._count:
                raise IndexError(term)
            self._checked[term] = True
