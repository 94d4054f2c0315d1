"""Images as a field."""

import dataclasses
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive, Share
from big_retrieval.config.registry import register
from big_retrieval.data.fields.contents import image_key
from big_retrieval.data.fields.reader import Drawing, FieldReader, Tools
from big_retrieval.data.images import transforms
from big_retrieval.data.images.decoding import Decoder
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    cell_of,
    column_of,
    is_absent,
)

if TYPE_CHECKING:
    from big_retrieval.config.run import Config


@register("field")
@dataclass(frozen=True)
class ImageField(EncodedField):
    """One image of a record; batches contain {"pixels": uint8 [B, size, size, 3]}."""

    modality: ClassVar[str] = "image"
    type: Literal["image"] = "image"
    side: Side = "document"
    tower: str = "image"
    column: str = "image"
    size: AtLeast1 = 224  # side in pixels
    # length of the short side in pixels before evaluations crop the central square; 0 for `size`
    eval_resize: AtLeast0 = 0
    eval_squash: bool = False  # evaluations resize both sides: the aspect ratio changes
    # filter for resizing in evaluations; in training, `loader.decoder` determines the filter
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    # rounding of a crop margin of n + 1/2 pixels in evaluations: to even as torchvision, or down as
    # transformers
    eval_margin: Literal["even", "down"] = "even"
    crop_scale: tuple[float, float] = (0.5, 1.0)  # share of the area; (1, 1) for no crop
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)  # width / height
    flip: Share = 0.5  # probability
    flip_unsafe_words: tuple[str, ...] = ("left", "right")  # no flip if a caption has such a word
    # probability that training fills a rectangle, 2% to 33% of the area, with the color `mean`,
    # which becomes 0 after normalization
    erasing: Share = 0.0
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[Positive, Positive, Positive] = (0.26862954, 0.26130258, 0.27577711)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            yield f"{path}.crop_scale is {self.crop_scale}; it must be 0 < low <= high <= 1."
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            yield f"{path}.crop_ratio is {self.crop_ratio}; it must be 0 < low <= high."
        if 0 < self.eval_resize < self.size:
            yield (
                f"{path}.eval_resize is {self.eval_resize}, less than size {self.size}; set it to "
                f"{self.size} or more, or to 0."
            )

    def build(self, tools: Tools) -> "ImageReader":
        return ImageReader(self, tools.loader.decoder, tools.loader.reduced)

    def evaluation_view(self) -> dict[str, Any]:
        """Returns the keyword arguments of `transforms.evaluation_view`."""
        return {
            "short": self.eval_resize,
            "squash": self.eval_squash,
            "interpolation": self.interpolation,
            "margin": self.eval_margin,
        }

    def shapes(self) -> Shapes:
        return {"pixels": ((self.size, self.size, 3), "uint8")}

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Returns the normalized pixels [B, S, S, 3]."""
        return (self.normalised(arrays["pixels"]).astype(dtype),)

    def normalised(self, pixels: Any) -> Any:
        """Normalizes uint8 pixels [B, S, S, 3] to float32 by the channels' mean and deviation."""
        import jax.numpy as jnp

        mean, std = jnp.asarray(self.mean, jnp.float32), jnp.asarray(self.std, jnp.float32)
        return (pixels.astype(jnp.float32) / 255 - mean) / std

    def shrunk(self) -> "ImageField":
        return dataclasses.replace(
            self,
            size=32,
            eval_resize=0,
            eval_squash=False,
            interpolation="bicubic",
            eval_margin="even",
            flip=0.0,
            erasing=0.0,
            crop_scale=(0.9, 1.0),
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "ImageField":
        return dataclasses.replace(self, column="image")


@dataclass(frozen=True)
class ImageReader(FieldReader):
    """Reads images as uint8 [size, size, 3]; `decoder` and `reduced` are keys of the loader."""

    field: ImageField
    decoder: Decoder = "pillow"
    reduced: bool = True

    def draw(self, name: str, record: Record, drawing: Drawing) -> np.ndarray:
        """Returns a random resized crop, possibly mirrored and with an erased rectangle.

        The image is not mirrored if a drawn text has one of the field's `flip_unsafe_words`.
        """
        image = transforms.training_view(
            column_of(record, self.field.column, drawing.source),
            self.field.size,
            scale=self.field.crop_scale,
            ratio=self.field.crop_ratio,
            rng=drawing.rng,
            reduced=self.reduced,
            decoder=self.decoder,
            place=drawing.place,
        )  # [S, S, 3]
        mirrored = drawing.rng.random() < self.field.flip
        mirrored = mirrored and not has_word(drawing.said, self.field.flip_unsafe_words)
        image = image[:, ::-1] if mirrored else image
        # With erasing=0, no random number is drawn, so other random draws do not change.
        if self.field.erasing and drawing.rng.random() < self.field.erasing:
            return transforms.erase(image, self.field.mean, drawing.rng)
        return image

    def stack(self, values: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
        """Returns {"pixels": uint8 [n, S, S, 3]}; None becomes a black image."""
        size = self.field.size
        pixels = np.zeros((len(values), size, size, 3), np.uint8)  # [n, S, S, 3]
        for row, value in enumerate(values):
            if value is not None:
                pixels[row] = value
        return {"pixels": pixels}

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        value = cell_of(source, index, self.field.column)
        if value is not None and not isinstance(value, bytes | np.ndarray):
            value = source[index].get(self.field.column)
        key = image_key(value)
        return () if key is None else (key,)

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        key = image_key(record.get(self.field.column))
        return () if key is None else (key,)

    def value(self, source: RecordSource, index: int, number: int) -> np.ndarray | None:
        record = source[index]
        if self.field.optional and is_absent(record.get(self.field.column)):
            return None
        value = column_of(record, self.field.column, source.name)
        return transforms.evaluation_view(
            value, self.field.size, place=source.place(index), **self.field.evaluation_view()
        )


def has_word(texts: Sequence[str], words: Sequence[str]) -> bool:
    """Returns True if a text contains one of the words, as a whole word in any case."""
    if not words:
        return False
    pattern = rf"\b(?:{'|'.join(map(re.escape, words))})\b"
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)
