"""How a field's values are taken from records, and how they become arrays of a batch.

`Field.build` returns a `FieldReader`. Readers of texts are here, readers of images in images.py,
readers of arrays in arrays.py.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config.data import Loader
from big_retrieval.data.damage import record_at
from big_retrieval.data.fields.contents import of_text
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    as_texts,
    as_utf8,
    column_of,
    is_absent,
    place_of,
    texts_of,
    title_of,
)
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer, drop_words
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config import TextField

Text = str | tuple[str, str]  # or title and text, one of which may be empty


@dataclass(frozen=True)
class Tools:
    """What `Field.build` may need besides the field's own keys.

    Attributes:
      tokenizer: of the text fields; None: there is none.
      loader: how images are decoded.
      fields: all of the run by name.
      source: the training records; None: nothing is trained.
    """

    tokenizer: FixedLengthTokenizer | None = None
    loader: Loader = field(default_factory=Loader)
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: RecordSource | None = None


@dataclass(frozen=True)
class Drawn:
    """Which text of a field was drawn for an example.

    Attributes:
      number: its place among the record's texts, from 0.
      count: of these texts.
    """

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
      field: the field's configuration.
      tokenizer: of a text field.
    """

    field: Any
    tokenizer: FixedLengthTokenizer | None = None

    def check(self, path: str, source: RecordSource) -> None:
        """Looks at what is beside the records, before anything is read of them.

        Args:
          path: of the field, such as `config.fields.text`.
          source: the records.

        Raises:
          UserError: it does not fit.
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

        Args:
          name: of the field.
          record: what the source gives.
          drawing: random numbers, and what was drawn before.

        Raises:
          Damaged: the record cannot be used.
          UserError: records have no such column.
        """
        raise NotImplementedError

    def stack(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """Values as the arrays of `Field.shapes`, with n rows each; None is an empty value.

        Args:
          values: n of what `draw` or `value` returns.
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
        """As `contents`, of a record that was read in training; files count by what they hold.

        Args:
          record: what the source gives.
          drawing: names source and record for messages.
        """
        del record, drawing
        return ()

    def value(self, source: RecordSource, index: int, number: int) -> Any:
        """The value that an evaluation takes; None: an optional field that the record lacks.

        Args:
          source: the records.
          index: of the record.
          number: of the value in the record, below `count`.

        Raises:
          Damaged: the record cannot be used.
        """
        raise NotImplementedError


def stack(reader: FieldReader, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """`Reader.stack`; with `present` bool [n] of an optional field: False where a value is None."""
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


@dataclass(frozen=True)
class TextReader(FieldReader):
    """Texts, with their titles where the field has some; see `Text`.

    Attributes:
      field: the field's configuration.
      tokenizer: makes ids of them; None: they are only read.
    """

    field: "TextField"
    tokenizer: FixedLengthTokenizer | None = None

    def check(self, path: str, source: RecordSource) -> None:
        """There is an unknown token where words become one."""
        del source
        if self.field.word_dropout and self.tokenizer and not self.tokenizer.unknown_token:
            raise UserError(
                f"{path}.word_dropout is {self.field.word_dropout:g}, but the tokenizer has no "
                "token for unknown words that a text can hold: set it to 0, or take word_deletion."
            )

    def lacks(self, record: Record) -> bool:
        """Neither a text nor a title."""
        return is_absent(record.get(self.field.column)) and is_absent(record.get(self.field.title))

    def draw(self, name: str, record: Record, drawing: Drawing) -> Text:
        """One of the record's texts, perhaps without some of its words."""
        texts = record_texts(record, self.field, drawing.source, drawing.place)
        number = int(drawing.rng.integers(len(texts)))
        drawing.texts[name] = Drawn(number, len(texts))
        text = texts[number]
        drawing.said += (text,) if isinstance(text, str) else text
        shares = self.field.word_dropout, self.field.word_deletion
        if self.tokenizer is None or shares == (0, 0):
            return text
        if isinstance(text, str):
            return drop_words(text, *shares, self.tokenizer, drawing.rng)
        title, body = (drop_words(each, *shares, self.tokenizer, drawing.rng) for each in text)
        return title, body

    def stack(self, values: Sequence[Text | None]) -> dict[str, np.ndarray]:
        """{"ids": int32 [n, L], "mask": bool [n, L]}; None is an empty text.

        Raises:
          UserError: there is no tokenizer.
        """
        if self.tokenizer is None:
            column = self.field.column
            raise UserError(f"The text field of column {column!r} has no tokenizer; give it one.")
        prefix = self.field.prefix
        pairs = [("", x) if isinstance(x, str) else x or ("", "") for x in values]
        titles = [prefix + title if title else "" for title, _ in pairs]
        texts = [
            text if title or value is None else prefix + text
            for (title, text), value in zip(pairs, values, strict=True)
        ]
        ids, mask = self.tokenizer.encode(texts, self.field.length, titles)  # [n, L]
        return {"ids": ids, "mask": mask}

    def count(self, source: RecordSource, index: int) -> int:
        """All texts of the record."""
        return len(source_texts(source, index, self))

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        """All texts of the record, without white space around them."""
        return tuple(of_text(text) for text in source_texts(source, index, self))

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        """The same."""
        texts = record_texts(record, self.field, drawing.source, drawing.place)
        return tuple(of_text(text) for text in texts)

    def value(self, source: RecordSource, index: int, number: int) -> Text:
        """One of its texts."""
        return source_texts(source, index, self)[number]


def record_texts(record: Record, field: "TextField", name: str, place: str) -> tuple[Text, ...]:
    """The texts of a record for a field, with their titles where the field has some.

    One title is that of all texts; of several there must be as many as texts. A record with a title
    and no text has the title alone.

    Args:
      record: what a source gives.
      field: the field's configuration.
      name: the source's, for messages.
      place: where the record stands, for messages.

    Raises:
      Damaged: it has none, or the titles are something else.
      UserError: the record has no such column.
    """
    value = column_of(record, field.column, name)
    titles = record.get(field.title) if field.title else None
    return _titled(None if is_absent(value) and titles else value, titles, field, place)


def source_texts(source: RecordSource, index: int, reader: FieldReader) -> tuple[Text, ...]:
    """As `record_texts`, of one record of a source; opens no image where the source can do so.

    Args:
      source: the records.
      index: of the record.
      reader: of a text field.

    Raises:
      Damaged: it has none, or the titles are something else.
      UserError: the record has no such column.
    """
    field = reader.field
    if not field.title:
        return texts_of(source, index, field.column)
    titles = title_of(source, index, field.title)
    try:
        found: tuple[str, ...] | None = texts_of(source, index, field.column)
    except Damaged:
        if is_absent(titles):
            raise
        found = None
    if found is not None and is_absent(titles):
        return found  # an empty text, too, where a source gives one (`sources.Texts`)
    return _titled(found, titles, field, place_of(source, index))


def _titled(value: Any, titles: Any, field: "TextField", place: str) -> tuple[Text, ...]:
    """Texts, or pairs of titles and texts; of a record without a text its title alone."""
    if is_absent(titles):
        return as_texts(value, field.column, place)
    texts = ("",) if is_absent(value) else as_texts(value, field.column, place)
    several = [titles] * len(texts) if isinstance(titles, str | bytes) else list(titles)
    if len(several) != len(texts):
        why = f"{field.title!r} has {len(several)} titles for {len(texts)} texts"
        raise Damaged(place, f"{why}; give one, or as many")
    for title in several:
        if title is not None and not isinstance(title, str | bytes):
            raise Damaged(place, f"{field.title!r} has {title!r:.80}, not a title")
    known = ["" if is_absent(title) else as_utf8(title) for title in several]
    return tuple(zip(known, texts, strict=True))
