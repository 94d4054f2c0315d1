"""Labels of a record's pair: ids of the query and the document, and the weight."""

import functools
import hashlib
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data.fields.reader import Drawn
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError

Label = int | float

# Name -> weight of a pair in the loss, as a function of its score (GCL, Eqs. 1 to 3)
FORMULAS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "constant": lambda s, s_max: np.ones(np.shape(s)),
    "linear": lambda s, s_max: np.array(s, np.float64),  # Eq. 1
    "inverse": lambda s, s_max: s_max / (s_max - s + 1),  # Eq. 2
    "inverse_sqrt": lambda s, s_max: s_max / np.sqrt(s_max - s + 1),
    # Eq. 3: both branches are s_max at 0.9 s_max
    "piecewise": lambda s, s_max: s_max / np.maximum(0.9 * s_max - s + 1, 1),
}


def label_types(labels: PairLabels) -> dict[str, type[np.generic]]:
    """Returns name -> type of the arrays of labels in a batch."""
    types = (
        ("query_id", labels.query, np.int32),
        ("document_id", labels.document, np.int32),
        ("weight", labels.score, np.float32),
    )
    return {name: dtype for name, column, dtype in types if column}


def read_labels(
    record: Record, labels: PairLabels, place: str, drawn: Mapping[str, Drawn] | None = None
) -> dict[str, Label]:
    """Returns `query_id`, `document_id` and `weight` of a record, if the config names columns.

    Args:
      labels: columns, after `build.make_labels`.
      drawn: text field -> the drawn text, which selects one of several ids.

    Raises:
      Damaged: a column is missing or empty, its number of ids differs from the number of texts, or
        a score has no weight.
      UserError: a column has several ids, and the field of their texts is unknown.
    """
    out: dict[str, Label] = {}
    for side in ("query", "document"):
        if getattr(labels, side):
            out[f"{side}_id"] = number_of(_id(record, labels, side, place, drawn or {}))
    if labels.score:
        out["weight"] = _weight(_value(record, labels.score, place), labels, place)
    return out


def number_of(value: Any) -> int:
    """Returns an id as an integer from 0 to 2^31 - 1: itself, or 31 bits of its digest.

    Two texts get the same integer with probability 2^-31.
    """
    if isinstance(value, numbers.Integral) and 0 <= int(value) < 2**31:
        return int(value)
    digest = hashlib.blake2b(str(value).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def _id(
    record: Record, labels: PairLabels, side: str, place: str, drawn: Mapping[str, Drawn]
) -> Any:
    """Returns the id of a side; from several ids, the id of the drawn text."""
    column, field = getattr(labels, side), getattr(labels, f"{side}_field")
    value = _value(record, column, place)
    if not isinstance(value, list | tuple):
        return value
    if not field:
        raise UserError(
            f"the label {column!r} has {len(value)} values ({place}), one for each text of some "
            f"field; name the field in config.labels.{side}_field."
        )
    count = drawn[field].count if field in drawn else 0
    if count != len(value):
        reason = f"the label {column!r} has {len(value)} values for {count} texts of {field!r}"
        raise Damaged(place, f"{reason}; give one, or one for each")
    return _present(value[drawn[field].number], record, column, place)


def _value(record: Record, column: str, place: str) -> Any:
    return _present(record.get(column), record, column, place)


def _present(value: Any, record: Record, column: str, place: str) -> Any:
    if value is None or value == "":
        reason = (
            "is empty" if column in record else f"is missing; it has {', '.join(sorted(record))}"
        )
        raise Damaged(place, f"the label {column!r} {reason}")
    return value


def _weight(score: Any, labels: PairLabels, place: str) -> float:
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        raise Damaged(place, f"the score {labels.score!r} is {score!r:.60}, not a number") from None
    if not 0 <= value <= labels.s_max:
        reason = f"the score {labels.score!r} is {value:g}, not from 0 to {labels.s_max:g}"
        raise Damaged(place, f"{reason}; see config.labels.s_max")
    return float(make_weight(labels)(np.array([value]))[0])


@functools.lru_cache(maxsize=16)
def make_weight(labels: PairLabels) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `labels.weight`: from scores float64 [n] in [0, s_max] to weights float64 [n].

    The functions, with s_max the highest possible score:
      constant: 1
      linear: s
      inverse: s_max / (s_max - s + 1)
      inverse_sqrt: s_max / sqrt(s_max - s + 1)
      piecewise: s_max if s >= 0.9 s_max, else s_max / (0.9 s_max - s + 1)
      table: `labels.table`, linear between its scores and constant beyond them

    Weights are not normalized: with s_max 100, `linear` gives 0 to 100, `inverse` 0.99 to 100.
    """
    if labels.weight == "table":
        scores, weights = np.array(labels.table, np.float64).T
        return lambda s: np.interp(s, scores, weights)
    formula, s_max = FORMULAS[labels.weight], float(labels.s_max)
    return lambda s: formula(np.asarray(s, np.float64), s_max)
