"""How a field's values are taken from records, and how they become arrays of a batch.

`Field.build` returns a `FieldReader`. A field without files or a tokenizer can be its own reader,
see `examples/letters.py`.
"""

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from big_retrieval.config.data import Loader
from big_retrieval.data.damage import record_at
from big_retrieval.data.sources import Record, RecordSource, is_absent, place_of
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import Damaged


@dataclass(frozen=True)
class Tools:
    """What `Field.build` may need besides the field's own keys."""

    tokenizer: FixedLengthTokenizer | None = None
    loader: Loader = field(default_factory=Loader)
    fields: Mapping[str, Any] = field(default_factory=dict)  # all fields of the run by name
    source: RecordSource | None = None  # the training records; None if nothing is trained


@dataclass(frozen=True)
class Drawn:
    """Position of the text that was drawn for an example, and number of the record's texts."""

    number: int
    count: int


@dataclass
class Drawing:
    """A training example while its fields are drawn, those with `draws_first` first.

    Attributes:
      source: the name of the source.
      place: where the record stands, for messages.
      index: the record's number.
      rng: the record's random numbers.
      texts: text field -> which of its texts was drawn.
      said: all texts that were drawn, titles too.
    """

    source: str
    place: str
    index: int
    rng: np.random.Generator
    texts: dict[str, Drawn] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


class FieldReader:
    """Reads the values of one field and makes arrays of them.

    Shared by threads and pickled to worker processes, so it must never change. Any exception
    about a record makes it a damaged one; `errors.Damaged` says in words what is wrong with it.

    Attributes:
      field: the part of the configuration.
      tokenizer: of a text field.
    """

    field: Any
    tokenizer: FixedLengthTokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers need no heads, whose modules take a second to import.
        state = dict(vars(self))
        if "field" in state:
            state["field"] = part = copy.copy(self.field)
            object.__setattr__(part, "head", None)
        return state

    def check_files(self, path: str, source: RecordSource) -> None:
        """Checks the field's files and its tokenizer against the records before any is read.

        Args:
          path: path of the field, such as `config.fields.text`, for messages.
          source: the training records.

        Raises:
          UserError: they do not fit.
        """
        del path, source

    def fingerprint(self) -> str:
        """Identifies what the field reads beside the records; a resumed run must find the same.

        Returns:
          A digest of the content; "": the field reads the records alone.
        """
        return ""

    def lacks(self, record: Record) -> bool:
        """Whether a record has nothing for the field; asked of optional ones only."""
        return is_absent(record.get(self.field.column))

    def draw(self, name: str, record: Record, drawing: Drawing) -> Any:
        """The value that training takes; None: an optional field that the record lacks.

        Raises:
          Damaged: the record cannot be used.
          UserError: records have no such column.
        """
        raise NotImplementedError

    def stack(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """n values of `draw` or `value` as the arrays of `Field.shapes`, n rows each.

        None is an empty value.
        """
        raise NotImplementedError

    def count(self, source: RecordSource, index: int) -> int:
        """How many values an evaluation reads of a record: all of its texts, one image.

        Raises:
          Damaged: the record cannot be used.
        """
        del source, index
        return 1

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        """What tells whether two records hold the same, one for each of the `count` values.

        Opens no image file. (): it is not known.

        Raises:
          Damaged: the record cannot be used.
        """
        del source, index
        return ()

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        """As `contents`, of a record that was read in training; files count by what they hold."""
        del record, drawing
        return ()

    def value(self, source: RecordSource, index: int, number: int) -> Any:
        """Value `number` (below `count`) of a record, for an evaluation.

        None: an optional field that the record lacks.

        Raises:
          Damaged: the record cannot be used.
        """
        raise NotImplementedError


def stack(reader: FieldReader, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """`FieldReader.stack`, and `present` bool [n] for an optional field: False for None."""
    arrays = reader.stack(values)
    if reader.field.optional:
        arrays = {**arrays, "present": np.array([x is not None for x in values], bool)}
    return arrays


def counts(reader: FieldReader, source: RecordSource) -> np.ndarray:
    """`FieldReader.count` of all records, int64 [records]; 0 of damaged ones."""
    if type(reader).count is FieldReader.count:  # one each, and no record need be looked at
        return np.ones(len(source), np.int64)
    return np.array([_count(reader, source, index) for index in range(len(source))], np.int64)


def _count(reader: FieldReader, source: RecordSource, index: int) -> int:
    try:
        with record_at(place_of(source, index)):
            return reader.count(source, index)
    except Damaged:
        return 0
