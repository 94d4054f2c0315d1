"""How images are taken from records; see reader.py."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.config import ImageField
from big_retrieval.data.fields.contents import of_image
from big_retrieval.data.fields.reader import Drawing, FieldReader
from big_retrieval.data.images import transforms
from big_retrieval.data.images.decoding import Decoder
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    cell_of,
    column_of,
    is_absent,
    place_of,
)


@dataclass(frozen=True)
class ImageReader(FieldReader):
    """Images as uint8 [size, size, 3].

    Attributes:
      field: the field's configuration.
      decoder: what decodes and resizes training images.
      reduced: whether training decodes large JPEG files at a smaller scale.
    """

    field: ImageField
    decoder: Decoder = "pillow"
    reduced: bool = True

    def draw(self, name: str, record: Record, drawing: Drawing) -> np.ndarray:
        """A random resized crop, mirrored unless a drawn text has a word that this makes untrue.

        Then perhaps a rectangle of it is erased.
        """
        del name
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
        wanted = drawing.rng.random() < self.field.flip
        mirrored = wanted and not has_word(drawing.said, self.field.flip_unsafe_words)
        image = transforms.flip(image) if mirrored else image
        # No number is drawn where nothing is erased, so that other draws are as without the key.
        if self.field.erasing and drawing.rng.random() < self.field.erasing:
            return transforms.erase(image, self.field.mean, drawing.rng)
        return image

    def stack(self, values: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
        """{"pixels": uint8 [n, S, S, 3]}; None is a black image."""
        size = self.field.size
        pixels = np.zeros((len(values), size, size, 3), np.uint8)  # [n, S, S, 3]
        for row, value in enumerate(values):
            if value is not None:
                pixels[row] = value
        return {"pixels": pixels}

    def contents(self, source: RecordSource, index: int) -> tuple[Hashable, ...]:
        """The image's path, or the digest of its bytes or pixels where the table holds these."""
        found = of_image(cell_of(source, index, self.field.column))
        return () if found is None else (found,)

    def record_contents(self, record: Record, drawing: Drawing) -> tuple[Hashable, ...]:
        """The digest of the image's bytes or pixels."""
        del drawing
        found = of_image(record.get(self.field.column))
        return () if found is None else (found,)

    def value(self, source: RecordSource, index: int, number: int) -> np.ndarray | None:
        """The image as evaluation sees it: resized and cropped centrally."""
        del number
        record = source[index]
        if self.field.optional and is_absent(record.get(self.field.column)):
            return None
        value = column_of(record, self.field.column, source.name)
        return transforms.evaluation_view(
            value, self.field.size, place=place_of(source, index), **self.field.evaluation_view()
        )


def has_word(texts: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of the texts contains one of the words, as a word and in any case."""
    if not words:
        return False
    pattern = rf"\b(?:{'|'.join(map(re.escape, words))})\b"
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)
