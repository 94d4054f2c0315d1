"""The items of one field in a retrieval evaluation: every image or text, and whose it is.

With a group column all records of a group are right answers to each other, and identical texts of
a group count once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.data.eval_batches import eval_items
from big_retrieval.data.fields.contents import of_text
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource, value_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import ChosenTexts, encode_source
from big_retrieval.inference.encoder import Embeddings, Encoder


@dataclass(frozen=True)
class FieldItems:
    """What one field brings to a retrieval evaluation.

    Attributes:
      field: the field's name.
      reader: how it is read.
      source: the records.
      embeddings: [n, M, N], or CSR [n, V].
      owners: int64 [n]; an embedding of the other side is a right answer where its owner is the
        same.
      items: int64 [n, 2]: record, and text in the record (0 for an image).
      further: embeddings of the other side that are right answers whatever their owner, int64 [n,
        E], filled up with -1; None: there are none.
      keys: int64 [n, K], filled up with -1; where records share contents, an embedding of the other
        side is a right answer where they have a key in common (`evals/same.py`), and `owners` do
        not count. None: records share nothing.
      values: int64 [n], equal for equal contents; None: all differ.
    """

    field: str
    reader: FieldReader
    source: RecordSource
    embeddings: Embeddings
    owners: np.ndarray
    items: np.ndarray
    further: np.ndarray | None = None
    keys: np.ndarray | None = None
    values: np.ndarray | None = None

    @property
    def ids(self) -> np.ndarray:
        """By what right answers are known: keys [n, K], or owners [n]."""
        return self.owners if self.keys is None else self.keys

    @property
    def different(self) -> np.ndarray:
        """Of which only one is shown among the worst, int64 [n]: values, else owners."""
        return self.owners if self.values is None else self.values

    def names(self) -> list[str]:
        """What each item is called in files: its record's number, of a text "7#2"."""
        single = self.reader.field.modality != "text"
        return [f"{record}" if single else f"{record}#{text}" for record, text in self.items]


def encode_items(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    name: str,
    reader: FieldReader,
    groups: np.ndarray | None = None,
    reading: Reading | None = None,
) -> FieldItems:
    """Encodes a field of all records.

    Args:
      encoder: encodes on the devices.
      weights: the parameters.
      source: the records.
      name: the field's name.
      reader: how it is read.
      groups: number of each record's group, int64 [records]; identical texts of one group then
        count once. None: every record is its own group and nothing is left out.
      reading: by what records are read; counts damaged ones.
    """
    if groups is not None and reader.field.modality == "text":
        items = distinct(source, reader, groups)  # [n, 2]
        chosen = ChosenTexts(source, reader, items)
        embeddings, places = encode_source(encoder, weights, chosen, name, reader, reading)
        items = items[places]
    else:
        embeddings, records = encode_source(encoder, weights, source, name, reader, reading)
        # Embeddings come in the order of the records, and of the texts in each.
        place = np.arange(len(records)) - np.searchsorted(records, records)
        items = np.stack([records, place], axis=1).astype(np.int64)  # [n, 2]
    owners = items[:, 0] if groups is None else groups[items[:, 0]]
    return FieldItems(name, reader, source, embeddings, owners, items)


def group_numbers(source: RecordSource, column: str) -> np.ndarray:
    """A number for each record, the same for records with the same value in a column.

    Args:
      source: the records.
      column: of text, numbers, or tuples of these. A record without a value (None, NaN or an
        empty text) or that is damaged is a group of its own.

    Returns:
      int64 [records], from 0 in the order of first occurrence.

    Raises:
      UserError: there is no such column, or a value cannot be compared.
    """
    numbers: dict[Any, int] = {}
    found = np.empty(len(source), np.int64)  # [records]
    for index in range(len(found)):
        found[index] = numbers.setdefault(_group(source, index, column), len(numbers))
    return found


def check_group(source: RecordSource, column: str) -> None:
    """Raises a UserError where the first group cannot be read, or where no record has one."""
    if not any(_group(source, index, column) != _alone(index) for index in range(len(source))):
        raise UserError(
            f"{source.name}: no record has a value in the group column {column!r}: name another "
            "column in config.evals.<name>.group, or leave it empty."
        )


def _alone(index: int) -> Any:
    return (ChosenTexts, index)  # equal to no value of a column


def _group(source: RecordSource, index: int, column: str) -> Any:
    alone = _alone(index)
    try:
        value = value_of(source, index, column)
    except Damaged:
        return alone
    if value is None or (isinstance(value, str) and not value):
        return alone
    if isinstance(value, float | np.floating) and np.isnan(value):
        return alone
    try:
        hash(value)
    except TypeError:
        raise UserError(
            f"{source.name}, record {index}: group column {column!r} is {value!r:.60}; it must "
            "hold a text or a number: name another column in config.evals.<name>.group."
        ) from None
    return value


def distinct(source: RecordSource, reader: FieldReader, groups: np.ndarray) -> np.ndarray:
    """Every text of a group once, where it first occurs: int64 [n, 2] of record and text in it."""
    seen: set[tuple[int, Hashable]] = set()
    kept = []
    last = -1
    texts: tuple[Text, ...] = ("",)
    for record, place in eval_items(source, reader).tolist():
        if record != last:
            last, texts = record, source_texts(source, record, reader)
        key = (int(groups[record]), of_text(texts[place]))
        if key not in seen:
            seen.add(key)
            kept.append((record, place))
    return np.array(kept, np.int64).reshape(-1, 2)
