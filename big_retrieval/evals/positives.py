"""Positives: the documents that answer each query, because both have something in common.

They are computed for some queries at a time, as index lists: in memory are the lists of these
queries, whatever the number of queries and documents.
"""

from typing import Any

import numpy as np
import scipy.sparse

NONE = -1  # padding
BLOCK = 1024  # queries


class Positives:
    """The positives of Q queries among D documents.

    Args:
      queries: ids, int64 [Q]; or keys, CSR [Q, K] with an entry for each key of a query.
      documents: ids or keys of the documents. Positives have the id, or at least one key, in
        common.
      further: CSR [Q, D] with an entry for each further positive; None for none.
    """

    def __init__(self, queries: Any, documents: Any, further: Any = None):
        if not scipy.sparse.issparse(queries):
            known = np.unique(documents)
            queries, documents = _keys(queries, known), _keys(documents, known)
        self._queries, self._documents = queries, scipy.sparse.csr_array(documents.T)
        self._count: int = documents.shape[0]
        self._further = further

    def __len__(self) -> int:
        return self._queries.shape[0]

    def rows(self, queries: Any) -> scipy.sparse.csr_array:
        """Returns some queries' positives, CSR [q, D]; `queries` is a slice or indices [q]."""
        found = self._queries[queries] @ self._documents
        if self._further is not None:
            found = found + self._further[queries]
        return scipy.sparse.csr_array(found)

    def padded(self, queries: Any) -> np.ndarray:
        """Returns the indices of some queries' positives, int32 [q, E], padded with -1.

        E is the largest number of positives, rounded up to a power of two: few shapes to compile.
        """
        found = self.rows(queries)
        counts = np.diff(found.indptr)
        width = 1 << (int(counts.max(initial=1)) - 1).bit_length()
        out = np.full((len(counts), width), NONE, np.int32)
        row = np.repeat(np.arange(len(counts)), counts)
        out[row, np.arange(len(row)) - found.indptr[row]] = found.indices
        return out

    def mask(self, query: int) -> np.ndarray:
        """Returns True for the positives of one query, bool [D]."""
        out = np.zeros(self._count, bool)
        out[self.rows([query]).indices] = True
        return out

    def contain(self, documents: np.ndarray) -> np.ndarray:
        """Returns True for documents [Q, n] that are positives of their query; -1 is none."""
        out = np.zeros(documents.shape, bool)
        for start in range(0, len(self), BLOCK):
            part = documents[start : start + BLOCK].astype(np.int64)
            pairs = self.rows(slice(start, start + BLOCK)).tocoo()
            known = pairs.row.astype(np.int64) * self._count + pairs.col
            asked = np.arange(len(part))[:, None] * self._count + part
            out[start : start + BLOCK] = np.isin(asked, known) & (part >= 0)
        return out


def _keys(ids: np.ndarray, known: np.ndarray) -> scipy.sparse.csr_array:
    """Returns CSR [n, K] with an entry for each id [n] that is among the known ones, [K]."""
    column = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
    row = np.flatnonzero(known[column] == ids) if len(known) else np.zeros(0, np.int64)
    entries = (np.ones(len(row), np.float32), (row, column[row]))
    return scipy.sparse.csr_array(entries, shape=(len(ids), len(known)))
