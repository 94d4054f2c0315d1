"""Which items of two fields answer each other where records share texts or images.

A value of one field is a right answer to a value of the other if some record holds both. So each of
two records with the same caption has its image right for this caption, and the captions of two
records with the same image are all right for it. This is not transitive: two images with one
caption in common do not share their other captions.

It is said by keys, numbers of values of one of the fields: an item of that field has the key of its
own value, an item of the other has those of all values that some record holds beside it, and two
items answer each other where they have a key in common.
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

NO_KEY = -1  # and less


@dataclass(frozen=True)
class FieldKeys:
    """The keys of one field's values, and what is the same.

    Attributes:
      contents: the values of all records.
      keys: int64 [values, K], filled up with -1.
    """

    contents: FieldContents
    keys: np.ndarray

    def of(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """FieldKeys [n, K] and numbers [n] of values, of items int64 [n, 2] of record and value."""
        values = self.contents.values[self.contents.starts[items[:, 0]] + items[:, 1]]
        return self.keys[values], values


def keys_of(first: FieldContents, second: FieldContents) -> tuple[FieldKeys, FieldKeys]:
    """The keys of two fields of the same records.

    The values of that field are the keys of which an item of the other one has fewer.
    """
    beside = _incidence(first).T @ _incidence(second)  # [values of first, values of second]
    lists = [_rows(beside), _rows(beside.T)]
    own = [np.arange(len(each))[:, None] for each in lists]
    if lists[0].shape[1] <= lists[1].shape[1]:
        return FieldKeys(first, lists[0]), FieldKeys(second, own[1])
    return FieldKeys(first, own[0]), FieldKeys(second, lists[1])


def contents_of(source: RecordSource, reader: FieldReader) -> FieldContents | None:
    """What all records hold of a field; every record its own value where that is not known."""
    found = field_contents(source, reader, range(len(source)))
    if found is None and reader.field.modality == "text":
        return None  # no usable text at all, which the evaluator tells of
    return alone(len(source)) if found is None else filled(found)


def alone(records: int) -> FieldContents:
    """One value for each record, and no two the same."""
    return FieldContents(np.arange(records + 1), np.arange(records))


def filled(found: FieldContents) -> FieldContents:
    """The same, with a value of its own for each record that has none."""
    counts = np.diff(found.starts)
    starts = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
    values = np.empty(starts[-1], np.int64)
    lacking = np.flatnonzero(counts == 0)
    rest = np.ones(len(values), bool)
    rest[starts[lacking]] = False
    values[rest] = found.values
    values[~rest] = found.values.max(initial=-1) + 1 + np.arange(len(lacking))
    return FieldContents(starts, values)


def _incidence(of: FieldContents) -> Any:
    """Which record holds which value, CSR [records, values], entries above 0."""
    shape = len(of.starts) - 1, int(of.values.max(initial=-1)) + 1
    return scipy.sparse.csr_array((np.ones(len(of.values)), (of.records, of.values)), shape=shape)


def _rows(matrix: Any) -> np.ndarray:
    """The columns of each row's entries, int64 [n, K], filled up with -1."""
    matrix = scipy.sparse.csr_array(matrix)
    counts = np.diff(matrix.indptr)
    out = np.full((len(counts), int(counts.max(initial=1))), NO_KEY, np.int64)
    row = np.repeat(np.arange(len(counts)), counts)
    out[row, np.arange(len(row)) - matrix.indptr[row]] = matrix.indices
    return out


def common(first: Any, second: Any) -> Any:
    """Which rows have a key in common: bool [..., Q, D] of keys [..., Q, K] and [..., D, L].

    Negative keys are none. Of numpy or jax.
    """
    find: Callable[..., Any] = jnp.any if isinstance(first, jax.Array) else np.any
    pairs = first[..., :, None, :, None] == second[..., None, :, None, :]
    return find(pairs & (first >= 0)[..., :, None, :, None], axis=(-2, -1))


def most_answers(first: np.ndarray, second: np.ndarray) -> int:
    """At least as many as any row of keys [Q, K] has answers among those of keys [D, L]."""
    keys, counts = np.unique(second[second >= 0], return_counts=True)
    if not len(keys):
        return 0
    place = np.minimum(np.searchsorted(keys, first), len(keys) - 1)
    found = np.where((keys[place] == first) & (first >= 0), counts[place], 0)
    return int(found.sum(axis=1).max(initial=0))
