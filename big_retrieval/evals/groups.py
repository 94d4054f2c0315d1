"""Items of one field in a retrieval evaluation: every image or text, and its owner.

With a group column, all records of a group are positives of each other, and identical texts of a
group count once.
"""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from big_retrieval.data.eval_batches import eval_items
from big_retrieval.data.fields.contents import text_key
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource, value_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import ChosenTexts, SourceEncoder
from big_retrieval.evals.positives import Positives
from big_retrieval.inference.encoder import Embeddings


@dataclass(frozen=True)
class FieldItems:
    """Embeddings of one field, and the ids or keys of their positives on the other side."""

    field: str
    reader: FieldReader
    source: RecordSource
    embeddings: Embeddings  # [n, M, N], or CSR [n, V]
    owners: np.ndarray  # int64 [n]; positives have the same owner
    items: np.ndarray  # int64 [n, 2]: record, and text in the record (0 for an image)
    further: Any = None  # CSR [n, m] of further positives on the other side
    # CSR [n, K], replaces `owners` if records share contents: positives have a key in common
    keys: Any = None
    values: np.ndarray | None = None  # int64 [n], equal for equal contents; None if all differ

    @property
    def different(self) -> np.ndarray:
        """`values`, else `owners`, int64 [n]; the hardest queries in a report differ in it."""
        return self.owners if self.values is None else self.values

    def names(self) -> list[str]:
        """Returns the name of each item in files: its record index, or "7#2" for a text."""
        single = self.reader.field.modality != "text"
        return [f"{record}" if single else f"{record}#{text}" for record, text in self.items]


def positives_of(first: FieldItems, second: FieldItems) -> Positives:
    """Returns the positives of each item of `first` among the items of `second`."""
    if first.keys is None:
        return Positives(first.owners, second.owners, first.further)
    return Positives(first.keys, second.keys, first.further)


def encode_items(
    encoder: SourceEncoder,
    source: RecordSource,
    name: str,
    reader: FieldReader,
    groups: np.ndarray | None = None,
) -> FieldItems:
    """Encodes a field of all records, and identical texts of a group (int64 [records]) once."""
    if groups is not None and reader.field.modality == "text":
        items = distinct(source, reader, groups)  # [n, 2]
        embeddings, rows = encoder.encode(ChosenTexts(source, reader, items), name, reader)
        items = items[rows]
    else:
        embeddings, records = encoder.encode(source, name, reader)
        # Embeddings are ordered by record, and by text in each record.
        index = np.arange(len(records)) - np.searchsorted(records, records)
        items = np.stack([records, index], axis=1).astype(np.int64)  # [n, 2]
    owners = items[:, 0] if groups is None else groups[items[:, 0]]
    return FieldItems(name, reader, source, embeddings, owners, items)


def group_numbers(source: RecordSource, column: str) -> np.ndarray:
    """Numbers the groups of records with the same value in a column, int64 [records].

    Groups are numbered from 0 in the order of first occurrence. A damaged record and a record
    without a value (None, NaN or an empty text) are separate groups.

    Raises:
      UserError: the column is missing, or a value cannot be compared.
    """
    index_of: dict[Any, int] = {}
    values = (_group(source, index, column) for index in range(len(source)))
    # object() equals no other value.
    groups = [index_of.setdefault(object() if x is None else x, len(index_of)) for x in values]
    return np.array(groups, np.int64)


def check_group(source: RecordSource, column: str) -> None:
    """Raises a UserError if the first group cannot be read, or if no record has a group."""
    if all(_group(source, index, column) is None for index in range(len(source))):
        raise UserError(
            f"{source.name}: no record has a value in the group column {column!r}. Name another "
            "column in config.evals.<name>.group, or leave it empty."
        )


def _group(source: RecordSource, index: int, column: str) -> Any:
    """Returns the group of a record; None for a record without a value."""
    try:
        value = value_of(source, index, column)
    except Damaged:
        return None
    try:
        hash(value)
    except TypeError:
        raise UserError(
            f"{source.name}, record {index}: group column {column!r} is {value!r:.60}; it must "
            "hold a text or a number. Name another column in config.evals.<name>.group."
        ) from None
    if isinstance(value, float | np.floating) and np.isnan(value):
        return None
    return None if value == "" else value


def distinct(source: RecordSource, reader: FieldReader, groups: np.ndarray) -> np.ndarray:
    """Finds the first occurrence of every text of a group, int64 [n, 2] of record and text."""
    first: dict[tuple[int, Hashable], tuple[int, int]] = {}
    for record, items in itertools.groupby(eval_items(source, reader).tolist(), itemgetter(0)):
        texts = source_texts(source, record, reader)
        for _, index in items:
            first.setdefault((int(groups[record]), text_key(texts[index])), (record, index))
    return np.array(list(first.values()), np.int64).reshape(-1, 2)
