"""Positives of two fields if records share texts or images.

A value of one field is a positive of a value of the other field if at least one record contains
both. If two records have the same caption, both images are positives of it; if they have the same
image, all their captions are. This is not transitive: two images with one caption in common do not
share their other captions.

Keys represent the positives: the values of the first field. An item of this field has the key of
its value, an item of the other field the keys of all values that share a record with its own. Two
items are positives of each other if they have a key in common (`evals/positives.py`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.duplicates import FieldContents, field_contents
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import RecordSource


@dataclass(frozen=True)
class FieldKeys:
    """Keys of one field's values.

    Attributes:
      contents: values of all records.
      keys: CSR [values, K] with an entry for each key of a value.
    """

    contents: FieldContents
    keys: Any

    def of(self, items: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns the keys, CSR [n, K], and value ids [n] of items [n, 2] (record, index in it)."""
        values = self.contents.values[self.contents.starts[items[:, 0]] + items[:, 1]]
        return self.keys[values], values


def keys_of(first: FieldContents, second: FieldContents) -> tuple[FieldKeys, FieldKeys]:
    """Computes the keys of two fields of the same records."""
    shared = _incidence(first).T @ _incidence(second)  # [values of first, values of second]
    own = scipy.sparse.eye_array(shared.shape[0], format="csr")
    return FieldKeys(first, own), FieldKeys(second, scipy.sparse.csr_array(shared.T))


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
