"""Texts with optional titles as a field."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.ranges import Share, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.data.damage import record_at
from big_retrieval.data.fields.contents import text_key
from big_retrieval.data.fields.reader import Drawing, Drawn, FieldReader, Tools
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    as_texts,
    as_utf8,
    column_of,
    is_absent,
    texts_of,
)
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

SHORTEST = 16  # minimum length of trimmed texts, in tokens
Text = str | tuple[str, str]  # a text, or title and text; one of the two may be empty


@register("field")
@dataclass(frozen=True)
class TextField(EncodedField):
    """One text of a record; training draws one of several.

    Batches contain {"ids": int32 [B, length], "mask": bool [B, length]}.
    """

    modality: ClassVar[str] = "text"
    draws_first: ClassVar[bool] = True
    type: Literal["text"] = "text"
    side: Side = "query"
    tower: str = "text"
    column: str = "captions"
    length: int = 77  # maximum length in tokens, including [CLS] and [SEP]
    title: str = ""  # column of titles: [CLS] title [SEP] text [SEP], cut at the end
    prefix: str = ""  # text before every title and text, such as "query: "
    # Probability that training replaces a word by the unknown token. Words are separated by white
    # space, or are the tokens of a tokenizer of the type "words".
    word_dropout: Share = 0.0
    word_deletion: ShareBelow1 = 0.0  # share of the words, rounded down, that training then deletes

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.length < 3:
            yield f"{path}.length is {self.length}; [CLS], a word and [SEP] need at least 3."

    def columns(self) -> Mapping[str, str]:
        return {"column": self.column, **({"title": self.title} if self.title else {})}

    def build(self, tools: Tools) -> "TextReader":
        return TextReader(self, tools.tokenizer)

    def shapes(self) -> Shapes:
        return {"ids": ((self.length,), "int32"), "mask": ((self.length,), "bool")}

    def lengths(self, arrays: Mapping[str, Any]) -> Any:
        """Returns the number of tokens in every row of a batch (numpy), int [n]."""
        return arrays["mask"].sum(axis=1)

    def trimmed(self, arrays: Mapping[str, Any], length: int | None = None) -> Mapping[str, Any]:
        """Removes positions that are padding in all rows; this changes results only by rounding.

        By default, the length is a power of two from `SHORTEST` on, so XLA compiles few programs.
        """
        if length is None:
            longest = int(self.lengths(arrays).max(initial=1))
            length = max(SHORTEST, 1 << (longest - 1).bit_length())
        return {**arrays, **{name: arrays[name][:, :length] for name in ("ids", "mask")}}

    def runlocal(self) -> "TextField":
        return dataclasses.replace(self.shrunk(), title="")

    def shrunk(self) -> "TextField":
        return dataclasses.replace(
            self,
            length=min(self.length, 32),
            word_dropout=0.0,
            word_deletion=0.0,
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "TextField":
        return dataclasses.replace(self, column="query" if self.side == "query" else "title")


@dataclass(frozen=True)
class TextReader(FieldReader):
    """Reads texts, with titles if the field has a title column; `stack` needs a tokenizer."""

    field: TextField
    tokenizer: FixedLengthTokenizer | None = None

    def check_files(self, path: str, source: RecordSource) -> None:
        if self.field.word_dropout and self.tokenizer and not self.tokenizer.unknown_token:
            raise UserError(
                f"{path}.word_dropout is {self.field.word_dropout:g}, but the tokenizer has no "
                "token for unknown words in texts: set it to 0, or use word_deletion."
            )

    def lacks(self, record: Record) -> bool:
        return is_absent(record.get(self.field.column)) and is_absent(record.get(self.field.title))

    def draw(self, name: str, record: Record, drawing: Drawing) -> Text:
        """Draws one of the record's texts, possibly without some of its words."""
        texts = record_texts(record, self.field, drawing.source, drawing.place)
        index = int(drawing.rng.integers(len(texts)))
        drawing.texts[name] = Drawn(index, len(texts))
        text = texts[index]
        drawing.said += (text,) if isinstance(text, str) else text
        shares = self.field.word_dropout, self.field.word_deletion
        if self.tokenizer is None or shares == (0, 0):
            return text
        if isinstance(text, str):
            return drop_words(text, *shares, self.tokenizer, drawing.rng)
        title, body = (drop_words(words, *shares, self.tokenizer, drawing.rng) for words in text)
        return title, body

    def stack(self, values: Sequence[Text | None]) -> dict[str, np.ndarray]:
        """Returns {"ids": int32 [n, L], "mask": bool [n, L]}; None becomes an empty text."""
        assert self.tokenizer is not None  # None in readers that never stack
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
        return len(source_texts(source, index, self))

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        return tuple(text_key(text) for text in source_texts(source, index, self))

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        texts = record_texts(record, self.field, drawing.source, drawing.place)
        return tuple(text_key(text) for text in texts)

    def value(self, source: RecordSource, index: int, number: int) -> Text:
        return source_texts(source, index, self)[number]


def drop_words(
    text: str,
    dropout: float,
    deletion: float,
    tokenizer: FixedLengthTokenizer,
    rng: np.random.Generator,
) -> str:
    """Replaces words by the unknown token, then deletes words; special tokens stay.

    Args:
      dropout: probability of replacing a word; 0 draws no random numbers.
      deletion: share of the words to delete, rounded down; 0 draws no random numbers.
    """
    words, special = tokenizer.words(text), tokenizer.special_tokens
    indices = np.array([n for n, word in enumerate(words) if word not in special], int)
    deleted = set()
    if dropout:
        for index in indices[rng.random(len(indices)) < dropout].tolist():
            words[index] = tokenizer.unknown_token
    if count := int(deletion * len(indices)):
        deleted = set(rng.choice(indices, count, replace=False).tolist())
    return tokenizer.joined([word for n, word in enumerate(words) if n not in deleted])


def record_texts(record: Record, field: TextField, name: str, place: str) -> tuple[Text, ...]:
    """Returns the texts of a record for a field, with titles if the field has a title column.

    One title belongs to all texts; several titles need the same number of texts. A record with a
    title and no text has the title alone.

    Raises:
      Damaged: the record has no text, or the titles do not fit.
      UserError: the record has no such column.
    """
    value = column_of(record, field.column, name)
    titles = record.get(field.title) if field.title else None
    return _titled(None if is_absent(value) and titles else value, titles, field, place)


def source_texts(source: RecordSource, index: int, reader: FieldReader) -> tuple[Text, ...]:
    """Returns `record_texts` of one record; opens no image if the source allows it."""
    field = reader.field
    if not field.title:
        return texts_of(source, index, field.column)
    titles = source.title(index, field.title)
    try:
        texts: tuple[str, ...] | None = texts_of(source, index, field.column)
    except Damaged:
        if is_absent(titles):
            raise
        texts = None
    if texts is not None and is_absent(titles):
        return texts  # including empty texts of `TextRecords`
    return _titled(texts, titles, field, source.place(index))


def all_texts(source: RecordSource, reader: FieldReader) -> tuple[list[int], list[Text]]:
    """Returns the number of texts of each record (0 if damaged), and all texts in order."""
    counts, texts = [], list[Text]()
    for index in range(len(source)):
        try:
            with record_at(source.place(index)):
                values = source_texts(source, index, reader)
        except Damaged:
            values = ()
        counts.append(len(values))
        texts += values
    return counts, texts


def _titled(value: Any, titles: Any, field: TextField, place: str) -> tuple[Text, ...]:
    """Returns texts, or pairs of title and text; without a text, the title alone."""
    if is_absent(titles):
        return as_texts(value, field.column, place)
    texts = ("",) if is_absent(value) else as_texts(value, field.column, place)
    several = [titles] * len(texts) if isinstance(titles, str | bytes) else list(titles)
    if len(several) != len(texts):
        reason = f"{field.title!r} has {len(several)} titles for {len(texts)} texts"
        raise Damaged(place, f"{reason}; give one, or one for each")
    for title in several:
        if title is not None and not isinstance(title, str | bytes):
            raise Damaged(place, f"{field.title!r} has {title!r:.80}, not a title")
    clean = ["" if is_absent(title) else as_utf8(title) for title in several]
    return tuple(zip(clean, texts, strict=True))
