"""How a field of a record is read, and how its values become arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from big_retrieval.data.decoding import Decoder
from big_retrieval.data.tokenizer import Tokenizer
from big_retrieval.errors import UserError


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
      prefix: put before every text.
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
    optional: bool = False


def stack(spec: FieldSpec, values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Images or texts as a field's arrays, [n, ...]; None is a black image or an empty text.

    Args:
      spec: how the field is read.
      values: images uint8 [size, size, 3], or texts.

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
    texts = ["" if x is None else spec.prefix + x for x in values]
    ids, mask = spec.tokenizer.encode(texts, spec.length)  # [n, L]
    return {"ids": ids, "mask": mask, **there}
