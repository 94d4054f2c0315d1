"""Base class of field readers, which read a field's values and stack them into arrays.

`Field.build` returns a `FieldReader`. A field without files and tokenizer can be its own reader;
see `examples/letters.py`.
"""

import contextlib
import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from big_retrieval.config.data import Loader
from big_retrieval.data.damage import record_at
from big_retrieval.data.sources import Record, RecordSource, is_absent
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import Damaged


@dataclass(frozen=True)
class Tools:
    """Objects that `Field.build` may need in addition to the field's keys."""

    tokenizer: FixedLengthTokenizer | None = None
    loader: Loader = field(default_factory=Loader)
    fields: Mapping[str, Any] = field(default_factory=dict)  # all fields of the run by name
    source: RecordSource | None = None  # the training records; None if nothing is trained


@dataclass(frozen=True)
class Drawn:
    """Index of the drawn text of an example, and the number of the record's texts."""

    number: int
    count: int


@dataclass
class Drawing:
    """State of a training example while its fields are drawn.

    Attributes:
      source, place, index: name of the source, location and index of the record.
      texts: text field -> drawn text.
      said: all drawn texts, including titles.
    """

    source: str
    place: str
    index: int
    rng: np.random.Generator
    texts: dict[str, Drawn] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


class FieldReader:
    """Reads the values of one field and stacks them into arrays.

    Threads share a reader and worker processes get a pickled copy, so it must never change. Any
    exception about a record marks the record as damaged; `errors.Damaged` carries the reason.
    """

    field: Any
    tokenizer: FixedLengthTokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers need no heads, whose modules take a second to import.
        state = dict(vars(self))
        if "head" in state:  # the reader is the field
            state["head"] = None
        if "field" in state:
            state["field"] = field_copy = copy.copy(self.field)
            object.__setattr__(field_copy, "head", None)
        return state

    def check_files(self, path: str, source: RecordSource) -> None:
        """Raises a UserError if the field's files or tokenizer do not fit the records.

        Called before the first read. Messages use `path`, such as `config.fields.text`.
        """

    def fingerprint(self) -> str:
        """Returns a digest of the field's files, which must not change in a run; empty for none."""
        return ""

    def lacks(self, record: Record) -> bool:
        """Returns True if a record has no value for the optional field."""
        return is_absent(record.get(self.field.column))

    def draw(self, name: str, record: Record, drawing: Drawing) -> Any:
        """Draws the training value of a record; None if an optional value is missing."""
        raise NotImplementedError

    def stack(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """Stacks n values of `draw` or `value` into the arrays of `Field.shapes`; None is empty."""
        raise NotImplementedError

    def count(self, source: RecordSource, index: int) -> int:
        """Returns the number of values that an evaluation reads: all texts, or one image."""
        return 1

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        """Returns a key for each of the `count` values, equal for equal contents; empty if unknown.

        Opens no image file.
        """
        return ()

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        """Returns keys like `contents`, for a record that training read."""
        return ()

    def value(self, source: RecordSource, index: int, number: int) -> Any:
        """Returns evaluation value `number` < `count`; None if an optional value is missing."""
        raise NotImplementedError


def stack(reader: FieldReader, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Returns `FieldReader.stack`, and for optional fields `present` bool [n], False for None."""
    arrays = reader.stack(values)
    if reader.field.optional:
        arrays = {**arrays, "present": np.array([x is not None for x in values], bool)}
    return arrays


def counts(reader: FieldReader, source: RecordSource) -> np.ndarray:
    """Returns `FieldReader.count` of all records, int64 [records]; 0 for damaged records."""
    if type(reader).count is FieldReader.count:  # always 1: reads no record
        return np.ones(len(source), np.int64)
    out = np.zeros(len(source), np.int64)
    for index in range(len(source)):
        with contextlib.suppress(Damaged), record_at(source.place(index)):
            out[index] = reader.count(source, index)
    return out
