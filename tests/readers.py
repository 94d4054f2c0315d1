"""Field readers and batches of tests, without a config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from big_retrieval.config import ImageField, TextField
from big_retrieval.data.fields.images import ImageReader
from big_retrieval.data.fields.texts import TextReader
from big_retrieval.data.pipeline import train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer


def text_reader(
    column: str, *, tokenizer: FixedLengthTokenizer | None = None, **keys: Any
) -> TextReader:
    """Returns the reader of a text field with these keys."""
    return TextReader(TextField(column=column, **keys), tokenizer)


def image_reader(column: str, *, decoder: Any = "pillow", reduced: bool = True, **keys: Any) -> Any:
    """Returns the reader of an image field with these keys, by default without crops and flips."""
    plain = {"crop_scale": (1.0, 1.0), "flip": 0.0}
    return ImageReader(ImageField(column=column, **(plain | keys)), decoder, reduced)


def changed(reader: Any, **keys: Any) -> Any:
    """Returns the reader of a field with other keys."""
    return dataclasses.replace(reader, field=dataclasses.replace(reader.field, **keys))


def train_batch_of(
    source: RecordSource,
    fields: Mapping[str, Any],
    *,
    size: int | None = None,
    seed: int = 0,
    index: int = 0,
    **keys: Any,
) -> dict[str, Any]:
    """Returns training batch `index` of `size` rows, by default of all records."""
    size = len(source) if size is None else size
    (batch,) = train_batches(
        source, fields=fields, order=source.order(seed), batch_size=size, rows=np.arange(size),
        start_batch=index, stop_batch=index + 1, **keys,
    )  # fmt: skip
    return batch
