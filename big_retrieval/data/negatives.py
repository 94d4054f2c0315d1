"""Hard negatives: training draws K of the non-relevant documents that a record lists."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text
from big_retrieval.data.sources import Record, as_utf8, is_absent
from big_retrieval.errors import Damaged


@dataclass(frozen=True)
class NegativeSampling:
    """Column and number (K) of hard negatives; the reader of document field `field` stacks them."""

    field: str
    column: str
    count: int


@dataclass(frozen=True)
class Negative:
    """A hard negative of a record. Documents of lower pools are drawn first."""

    title: str
    text: str
    pool: int = 0

    def as_text(self, titled: bool) -> Text:
        """Returns title and text, or the text alone."""
        return (self.title, self.text) if titled else self.text


def draw_negatives(
    record: Record, sampling: NegativeSampling | None, place: str, rng: np.random.Generator
) -> list[Negative]:
    """Draws at most K of a record's negatives without replacement, lower pools first.

    Raises:
      Damaged: the column contains something else than a list of documents.
    """
    if sampling is None:
        return []
    negatives = read_negatives(record.get(sampling.column), sampling.column, place)
    drawn: list[Negative] = []
    for pool in sorted({negative.pool for negative in negatives}):
        members = [negative for negative in negatives if negative.pool == pool]
        order = rng.permutation(len(members))[: sampling.count - len(drawn)]
        drawn += [members[index] for index in order.tolist()]
    return drawn


def read_negatives(value: Any, column: str, place: str) -> list[Negative]:
    """Returns the negatives of a record, without empty texts.

    Args:
      value: a list of texts or of {"title": ..., "text": ..., "pool": 0}, one text, or None.

    Raises:
      Damaged: the value is something else.
    """
    if is_absent(value):
        return []
    values = value.tolist() if isinstance(value, np.ndarray) else value
    values = [values] if isinstance(values, str | bytes | Mapping) else values
    if not isinstance(values, list | tuple):
        raise Damaged(place, f"{column!r} is {value!r:.80}, not a list of documents")
    negatives = [_read(negative_value, column, place) for negative_value in values]
    return [negative for negative in negatives if negative.text.strip()]


def _read(value: Any, column: str, place: str) -> Negative:
    fields = value if isinstance(value, Mapping) else {"text": value}
    title, text, pool = fields.get("title"), fields.get("text"), fields.get("pool", 0)
    for text_value in (title, text):
        if text_value is not None and not isinstance(text_value, str | bytes):
            raise Damaged(place, f"{column!r} has {text_value!r:.80}, not a text")
    if "text" not in fields or not isinstance(pool, int):
        raise Damaged(place, f'{column!r} has {value!r:.80}, not {{"title": ..., "text": ...}}')
    return Negative(as_utf8(title or ""), as_utf8(text or ""), pool)


def stack_negatives(
    sampling: NegativeSampling,
    fields: Mapping[str, FieldReader],
    values: Sequence[Sequence[Negative]],
) -> dict[str, Any]:
    """Returns the negatives of n records as arrays of a batch, with titles if the field has some.

    Args:
      values: at most K negatives per record.

    Returns:
      `negatives`: {field: {ids int32 [n, K, L], mask bool [n, K, L]}}, filled up with empty texts;
      and `negatives_valid` bool [n, K], False for these.
    """
    count, reader = sampling.count, fields[sampling.field]
    padded = [[*negatives, *[None] * (count - len(negatives))] for negatives in values]
    titled = bool(reader.field.title)
    arrays = reader.stack([x and x.as_text(titled) for row in padded for x in row])  # [n * K, L]
    shaped = {name: x.reshape(len(values), count, -1) for name, x in arrays.items()}
    present = np.array([[x is not None for x in row] for row in padded], bool)
    return {"negatives": {sampling.field: shaped}, "negatives_valid": present}
