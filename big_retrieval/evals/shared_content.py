"""Positives of two fields if records share texts or images.

A value of one field is a positive of a value of the other field if at least one record contains
both. If two records have the same caption, both images are positives of it; if they have the same
image, all their captions are. This is not transitive: two images with one caption in common do not
share their other captions.

Keys represent the positives. They are value indices of one of the fields: an item of this field has
the key of its value, an item of the other field has the keys of all values that share a record with
it. Two items are positives of each other if they have a key in common.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.data.duplicates import FieldContents, field_contents
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import RecordSource

NO_KEY = -1  # padding; all negative keys are padding


@dataclass(frozen=True)
class FieldKeys:
    """Keys of one field's values.

    Attributes:
      contents: values of all records.
      keys: int64 [values, K], padded with -1.
    """

    contents: FieldContents
    keys: np.ndarray

    def of(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the keys [n, K] and value ids [n] of items [n, 2] (record, index in it)."""
        values = self.contents.values[self.contents.starts[items[:, 0]] + items[:, 1]]
        return self.keys[values], values


def keys_of(first: FieldContents, second: FieldContents) -> tuple[FieldKeys, FieldKeys]:
    """Computes the keys of two fields of the same records.

    The keys are the values of the field that gives the items of the other field fewer keys.
    """
    shared = _incidence(first).T @ _incidence(second)  # [values of first, values of second]
    of_first, of_second = padded_columns(shared), padded_columns(shared.T)
    if of_first.shape[1] <= of_second.shape[1]:
        return FieldKeys(first, of_first), FieldKeys(second, np.arange(len(of_second))[:, None])
    return FieldKeys(first, np.arange(len(of_first))[:, None]), FieldKeys(second, of_second)


def contents_of(source: RecordSource, reader: FieldReader) -> FieldContents | None:
    """Reads the values of a field in all records; if they are unknown, all records differ.

    Returns:
      None if no record has a text, which the evaluator reports.
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


def padded_columns(matrix: Any) -> np.ndarray:
    """Returns the columns of each row's entries, int64 [n, K], padded with -1."""
    matrix = scipy.sparse.csr_array(matrix)
    counts = np.diff(matrix.indptr)
    out = np.full((len(counts), int(counts.max(initial=1))), NO_KEY, np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    out[row, np.arange(len(row)) - matrix.indptr[row]] = matrix.indices
    return out


def share_key(first: Any, second: Any) -> Any:
    """Returns True for rows with a key in common: keys [..., Q, K] and [..., D, L] -> [..., Q, D].

    Negative keys are padding. Works on numpy and jax arrays.
    """
    find: Callable[..., Any] = jnp.any if isinstance(first, jax.Array) else np.any
    pairs = first[..., :, None, :, None] == second[..., None, :, None, :]
    return find(pairs & (first >= 0)[..., :, None, :, None], axis=(-2, -1))


def most_answers(first: np.ndarray, second: np.ndarray) -> int:
    """Returns an upper bound of the positives that a row of keys [Q, K] has in keys [D, L]."""
    keys, counts = np.unique(second[second >= 0], return_counts=True)
    if not len(keys):
        return 0
    index = np.minimum(np.searchsorted(keys, first), len(keys) - 1)
    hits = np.where((keys[index] == first) & (first >= 0), counts[index], 0)
    return int(hits.sum(axis=1).max(initial=0))
