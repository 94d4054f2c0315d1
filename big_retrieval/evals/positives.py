"""Positives: the documents that have an id or a key in common with a query.

Keys are for records that share texts or images. A value of one field is a positive of a value of
the other field if at least one record contains both. If two records have the same caption, both
images are positives of it; if they have the same image, all their captions are. This is not
transitive: two images with one caption in common do not share their other captions.

The keys are the values of the first field. An item of this field has the key of its value. An item
of the other field has the keys of all values that share a record with its value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.duplicates import FieldContents, field_contents
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import RecordSource

NONE = -1  # padding


class Positives:
    """Positives of Q queries among D documents: they have the id or at least one key in common.

    Args:
      queries: ids, int64 [Q]; or keys, CSR [Q, K] with an entry for each key of a query.
      documents: ids or keys of the documents.
      further: CSR [Q, D] with an entry for each further positive; None for none.
    """

    def __init__(self, queries: Any, documents: Any, further: Any = None):
        if not scipy.sparse.issparse(queries):
            ids = np.unique(documents)
            queries, documents = _keys(queries, ids), _keys(documents, ids)
        self._queries, self._documents = queries, scipy.sparse.csr_array(documents.T)
        self._count: int = documents.shape[0]
        self._further = further

    def __len__(self) -> int:
        return self._queries.shape[0]

    def rows(self, queries: Any) -> scipy.sparse.csr_array:
        """Returns some queries' positives, CSR [q, D]; `queries` is a slice or indices [q]."""
        positives = self._queries[queries] @ self._documents
        if self._further is not None:
            positives = positives + self._further[queries]
        return scipy.sparse.csr_array(positives)

    def padded(self, queries: Any) -> np.ndarray:
        """Returns the indices of some queries' positives, int32 [q, E], padded with -1.

        E is the largest number of positives, rounded up to a power of two: few shapes to compile.
        """
        positives = self.rows(queries)
        counts = np.diff(positives.indptr)
        width = 1 << (int(counts.max(initial=1)) - 1).bit_length()
        out = np.full((len(counts), width), -1, np.int32)
        row = np.repeat(np.arange(len(counts)), counts)
        out[row, np.arange(len(row)) - positives.indptr[row]] = positives.indices
        return out

    def mask(self, query: int) -> np.ndarray:
        """Returns True for the positives of one query, bool [D]."""
        out = np.zeros(self._count, bool)
        out[self.rows([query]).indices] = True
        return out


def _keys(ids: np.ndarray, columns: np.ndarray) -> scipy.sparse.csr_array:
    """Returns CSR [n, K] with an entry for each of the ids [n] that is in `columns` [K]."""
    column = np.minimum(np.searchsorted(columns, ids), max(len(columns) - 1, 0))
    row = np.flatnonzero(columns[column] == ids) if len(columns) else np.zeros(0, np.int64)
    entries = (np.ones(len(row), np.float32), (row, column[row]))
    return scipy.sparse.csr_array(entries, shape=(len(ids), len(columns)))


@dataclass(frozen=True)
class FieldKeys:
    """Keys of one field's values."""

    contents: FieldContents  # values of all records
    keys: Any  # CSR [values, K] with an entry for each key of a value

    def lookup(self, items: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns the keys, CSR [n, K], and value ids [n] of items [n, 2] (record, index in it)."""
        values = self.contents.values[self.contents.starts[items[:, 0]] + items[:, 1]]
        return self.keys[values], values


def keys_of(first: FieldContents, second: FieldContents) -> tuple[FieldKeys, FieldKeys]:
    """Computes the keys of two fields of the same records."""
    shared = _incidence(first).T @ _incidence(second)  # [values of first, values of second]
    identity = scipy.sparse.eye_array(shared.shape[0], format="csr")
    return FieldKeys(first, identity), FieldKeys(second, scipy.sparse.csr_array(shared.T))


def contents_of(source: RecordSource, reader: FieldReader) -> FieldContents | None:
    """Reads the values of a field in all records; if they are unknown, all records differ.

    Returns None if no record has a text, which the evaluator reports.
    """
    contents = field_contents(source, reader, range(len(source)))
    if contents is None and reader.field.modality == "text":
        return None
    return fill_missing(contents or FieldContents(np.zeros(len(source) + 1, int), np.zeros(0, int)))


def fill_missing(contents: FieldContents) -> FieldContents:
    """Adds a new value to each record without values."""
    counts = np.diff(contents.starts)
    starts = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
    values = np.empty(starts[-1], np.int64)
    missing = np.flatnonzero(counts == 0)
    present = np.ones(len(values), bool)
    present[starts[missing]] = False
    values[present] = contents.values
    values[~present] = contents.values.max(initial=-1) + 1 + np.arange(len(missing))
    return FieldContents(starts, values)


def _incidence(contents: FieldContents) -> Any:
    """Returns the values of each record as CSR [records, values], entries above 0."""
    values = contents.values
    shape = len(contents.starts) - 1, int(values.max(initial=-1)) + 1
    return scipy.sparse.csr_array((np.ones(len(values)), (contents.records, values)), shape=shape)
