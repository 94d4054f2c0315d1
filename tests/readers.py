"""How tests read fields, without a configuration around them."""

import dataclasses
from typing import Any

from big_retrieval.config import ImageField, TextField
from big_retrieval.data.fields.images import ImageReader
from big_retrieval.data.fields.texts import TextReader
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer


def text_reader(
    column: str, *, tokenizer: FixedLengthTokenizer | None = None, **keys: Any
) -> TextReader:
    """Reads a text field with these keys."""
    return TextReader(TextField(column=column, **keys), tokenizer)


def image_reader(column: str, *, decoder: Any = "pillow", reduced: bool = True, **keys: Any) -> Any:
    """Reads an image field with these keys, without crops and flips unless they are among them."""
    plain = {"crop_scale": (1.0, 1.0), "flip": 0.0}
    return ImageReader(ImageField(column=column, **(plain | keys)), decoder, reduced)


def changed(reader: Any, **keys: Any) -> Any:
    """The reader of a field with other keys."""
    return dataclasses.replace(reader, field=dataclasses.replace(reader.field, **keys))
