"""How a field of a record is read, and how its values become arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from big_retrieval.data.decoding import Decoder
from big_retrieval.data.sources import (
    Record,
    Source,
    as_texts,
    as_utf8,
    column_of,
    is_absent,
    place_of,
    texts_of,
    title_of,
)
from big_retrieval.data.tokenizer import Tokenizer
from big_retrieval.errors import Damaged, UserError

Text = str | tuple[str, str]  # or title and text, one of which may be empty


@dataclass(frozen=True)
class FieldSpec:
    """How one field of a record becomes arrays.

    Attributes:
      kind: "image" gives {"pixels": uint8 [b, size, size, 3]}, "text" gives {"ids": int32
        [b, length], "mask": bool [b, length]}.
      column: the column that it is read from.
      size: side of the images in pixels.
      length: tokens of the texts.
      crop_scale: share of the area that training keeps; (1, 1): no crop.
      crop_ratio: width / height of the part that training keeps.
      flip: probability that training mirrors the image.
      flip_unsafe_words: words of a chosen text that forbid it.
      tokenizer: of a text field.
      decoder: what decodes and resizes training images.
      reduced: whether training decodes large JPEG files at a smaller scale.
      prefix: put before every text, in front of its title.
      title: the column of the texts' titles; "": they have none.
      optional: whether a record may lack the column; its arrays then have {"there": bool [b]}, too.
    """

    kind: Literal["image", "text"]
    column: str
    size: int = 0
    length: int = 0
    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    flip_unsafe_words: tuple[str, ...] = ("left", "right")
    tokenizer: Tokenizer | None = None
    decoder: Decoder = "pillow"
    reduced: bool = True
    prefix: str = ""
    title: str = ""
    optional: bool = False


def stack(spec: FieldSpec, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Images or texts as a field's arrays, [n, ...]; None is a black image or an empty text.

    Args:
      spec: how the field is read.
      values: images uint8 [size, size, 3], or texts, with titles where the field has them.

    Raises:
      UserError: a text field without a tokenizer.
    """
    there = {"there": np.array([x is not None for x in values], bool)} if spec.optional else {}
    if spec.kind == "image":
        pixels = np.zeros((len(values), spec.size, spec.size, 3), np.uint8)  # [n, S, S, 3]
        for row, value in enumerate(values):
            if value is not None:
                pixels[row] = value
        return {"pixels": pixels, **there}
    if spec.tokenizer is None:
        raise UserError(f"The text field of column {spec.column!r} has no tokenizer; give it one.")
    pairs = [("", x) if isinstance(x, str) else x or ("", "") for x in values]
    titles = [spec.prefix + title if title else "" for title, _ in pairs]
    texts = [
        text if title or value is None else spec.prefix + text
        for (title, text), value in zip(pairs, values, strict=True)
    ]
    ids, mask = spec.tokenizer.encode(texts, spec.length, titles)  # [n, L]
    return {"ids": ids, "mask": mask, **there}


def lacks(record: Record, spec: FieldSpec) -> bool:
    """Whether a record has nothing for a field, neither in its column nor as a title."""
    return is_absent(record.get(spec.column)) and is_absent(record.get(spec.title))


def record_texts(record: Record, spec: FieldSpec, name: str, place: str) -> tuple[Text, ...]:
    """The texts of a record for a field, with their titles where the field has some.

    One title is that of all texts; of several there must be as many as texts. A record with a title
    and no text has the title alone.

    Args:
      record: what a source gives.
      spec: of a text field.
      name: the source's, for messages.
      place: where the record stands, for messages.

    Raises:
      Damaged: it has none, or the titles are something else.
      UserError: the record has no such column.
    """
    value = column_of(record, spec.column, name)
    titles = record.get(spec.title) if spec.title else None
    return _titled(None if is_absent(value) and titles else value, titles, spec, place)


def source_texts(source: Source, index: int, spec: FieldSpec) -> tuple[Text, ...]:
    """As `record_texts`, of one record of a source; opens no image where the source can do so.

    Raises:
      Damaged: it has none, or the titles are something else.
      UserError: the record has no such column.
    """
    if not spec.title:
        return texts_of(source, index, spec.column)
    titles = title_of(source, index, spec.title)
    try:
        found: tuple[str, ...] | None = texts_of(source, index, spec.column)
    except Damaged:
        if is_absent(titles):
            raise
        found = None
    if found is not None and is_absent(titles):
        return found  # an empty text, too, where a source gives one (`sources.Texts`)
    return _titled(found, titles, spec, place_of(source, index))


def _titled(value: Any, titles: Any, spec: FieldSpec, place: str) -> tuple[Text, ...]:
    """Texts, or pairs of titles and texts; of a record without a text its title alone."""
    if is_absent(titles):
        return as_texts(value, spec.column, place)
    texts = ("",) if is_absent(value) else as_texts(value, spec.column, place)
    several = [titles] * len(texts) if isinstance(titles, str | bytes) else list(titles)
    if len(several) != len(texts):
        why = f"{spec.title!r} has {len(several)} titles for {len(texts)} texts"
        raise Damaged(place, f"{why}; give one, or as many")
    for title in several:
        if title is not None and not isinstance(title, str | bytes):
            raise Damaged(place, f"{spec.title!r} has {title!r:.80}, not a title")
    known = ["" if is_absent(title) else as_utf8(title) for title in several]
    return tuple(zip(known, texts, strict=True))
