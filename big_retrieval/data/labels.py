"""What a record says of its pair: which query and document it is, and how much it counts."""

import functools
import hashlib
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data.sources import Record
from big_retrieval.data.weights import make_weight
from big_retrieval.errors import Damaged

Label = int | float


def label_types(labels: PairLabels) -> dict[str, type[np.generic]]:
    """The arrays that a batch has besides the fields, by name, with their types."""
    out: dict[str, type[np.generic]] = {}
    if labels.query:
        out["query_id"] = np.int32
    if labels.document:
        out["document_id"] = np.int32
    if labels.score:
        out["weight"] = np.float32
    return out


def read_labels(
    record: Record, labels: PairLabels, place: str, drawn: Mapping[int, int] | None = None
) -> dict[str, Label]:
    """The labels of a record; none where the configuration names no column.

    Args:
      record: one pair.
      labels: which columns.
      place: where the record stands, for messages.
      drawn: of a field with so many texts, which of them was drawn; of ids that are as many, one
        for each text, that one's counts.

    Returns:
      `query_id` and `document_id`, from 0, equal for equal values (`number_of`); `weight`.

    Raises:
      Damaged: a column is missing or empty, or a score has no weight.
    """
    out: dict[str, Label] = {}
    if labels.query:
        out["query_id"] = number_of(_value(record, labels.query, place, drawn))
    if labels.document:
        out["document_id"] = number_of(_value(record, labels.document, place, drawn))
    if labels.score:
        out["weight"] = _weight(_value(record, labels.score, place), labels, place)
    return out


def number_of(value: Any) -> int:
    """A number from 0 to 2^31 - 1 for an id: itself where it is one, else 31 bits of its digest.

    Different texts share a number once in 2^31 pairs of them.
    """
    if isinstance(value, numbers.Integral) and 0 <= int(value) < 2**31:
        return int(value)
    digest = hashlib.blake2b(str(value).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def _value(record: Record, column: str, place: str, drawn: Mapping[int, int] | None = None) -> Any:
    value = record.get(column)
    if isinstance(value, list | tuple) and len(value) in (drawn or {}):
        value = value[(drawn or {})[len(value)]]
    if value is None or value == "":
        why = "is empty" if column in record else f"is missing; it has {', '.join(sorted(record))}"
        raise Damaged(place, f"the label {column!r} {why}")
    return value


def _weight(score: Any, labels: PairLabels, place: str) -> float:
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        raise Damaged(place, f"the score {labels.score!r} is {score!r:.60}, no number") from None
    if not 0 <= number <= labels.s_max:
        why = f"the score {labels.score!r} is {number:g}, not from 0 to {labels.s_max:g}"
        raise Damaged(place, f"{why}; see config.labels.s_max")
    return float(_function(labels)(np.array([number]))[0])


@functools.lru_cache(maxsize=16)
def _function(labels: PairLabels) -> Callable[[np.ndarray], np.ndarray]:
    return make_weight(labels)
