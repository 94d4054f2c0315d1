"""Hard negatives: further documents that a record brings along, K of them drawn for its pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text
from big_retrieval.data.sources import Record, as_utf8, is_absent
from big_retrieval.errors import Damaged

POOL = "pool"  # key of an item


@dataclass(frozen=True)
class NegativeSampling:
    """The further documents that every training pair brings.

    Attributes:
      field: the document field that they are read like.
    """

    field: str
    column: str
    count: int


@dataclass(frozen=True)
class Negative:
    """One document of a record's list.

    Attributes:
      pool: items of a lower pool are taken before those of a higher one.
    """

    title: str
    text: str
    pool: int = 0


def draw_negatives(
    record: Record, sampling: NegativeSampling | None, place: str, rng: np.random.Generator
) -> list[Negative]:
    """Draws K of a record's negatives without replacement, lower pools first.

    Args:
      sampling: K and the column; None draws nothing.

    Returns:
      K documents, or fewer where the record has no more.

    Raises:
      Damaged: the column holds something else than a list of documents.
    """
    if sampling is None:
        return []
    items = read_negatives(record.get(sampling.column), sampling.column, place)
    chosen: list[Negative] = []
    for pool in sorted({item.pool for item in items}):
        mine = [item for item in items if item.pool == pool]
        order = rng.permutation(len(mine))[: sampling.count - len(chosen)]
        chosen += [mine[number] for number in order.tolist()]
    return chosen


def read_negatives(value: Any, column: str, place: str) -> list[Negative]:
    """The negatives of a record, without those that say nothing.

    Args:
      value: a list of texts, or of {"title": ..., "text": ..., "pool": 0}; one text; or nothing.

    Raises:
      Damaged: it is something else.
    """
    if is_absent(value):
        return []
    items = value.tolist() if isinstance(value, np.ndarray) else value
    items = [items] if isinstance(items, str | bytes | Mapping) else items
    if not isinstance(items, list | tuple):
        raise Damaged(place, f"{column!r} is {value!r:.80}, not a list of documents")
    found = [_read(item, column, place) for item in items]
    return [item for item in found if item.text.strip()]


def _read(item: Any, column: str, place: str) -> Negative:
    fields = item if isinstance(item, Mapping) else {"text": item}
    title, text, pool = fields.get("title"), fields.get("text"), fields.get(POOL, 0)
    for each in (title, text):
        if each is not None and not isinstance(each, str | bytes):
            raise Damaged(place, f"{column!r} has {each!r:.80}, not a text")
    if "text" not in fields or not isinstance(pool, int):
        raise Damaged(place, f'{column!r} has {item!r:.80}, not {{"title": ..., "text": ...}}')
    return Negative(as_utf8(title or ""), as_utf8(text or ""), pool)


def stack_negatives(
    sampling: NegativeSampling,
    fields: Mapping[str, FieldReader],
    values: Sequence[Sequence[Negative]],
) -> dict[str, Any]:
    """The negatives of n records as arrays of a batch; their titles count where the field has some.

    Args:
      sampling: K, and the field.
      values: the negatives of each record, K at most.

    Returns:
      `negatives`: {field: {ids int32 [n, K, L], mask bool [n, K, L]}}, empty texts where a record
      has fewer; and `negatives_valid` bool [n, K], False for these.
    """
    count, reader = sampling.count, fields[sampling.field]
    padded = [[*found, *[None] * (count - len(found))] for found in values]
    flat: list[Text | None] = []
    for item in (item for row in padded for item in row):
        flat.append(item and ((item.title, item.text) if reader.field.title else item.text))
    arrays = reader.stack(flat)  # [n * K, L]
    shaped = {name: x.reshape(len(values), count, -1) for name, x in arrays.items()}
    present = np.array([[item is not None for item in row] for row in padded], bool)
    return {"negatives": {sampling.field: shaped}, "negatives_valid": present}
