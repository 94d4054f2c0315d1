"""Values in memory as a source of records, such as texts that a user passes to a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from big_retrieval.config import Field
from big_retrieval.data.images import decoding
from big_retrieval.data.images.limits import MOST_FILE
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_bytes


class Values(RecordSource):
    """Values of one field as a source of records.

    Args:
      values: a sequence. For an image field, a value is a file path, the content of a file as
        bytes, a PIL image or a uint8 array [H, W, 3]; a single image is a sequence of one.
    """

    name = "the values"

    def __init__(self, values: Any, field: Field) -> None:
        self._field, self._is_image = field, field.modality == "image"
        self._values = _as_sequence(values) if self._is_image else values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = self._values[index]
        return dict(self._field.record(read_image(value) if self._is_image else value))


def _as_sequence(images: Any) -> Sequence[Any]:
    """Returns images as a sequence; an array [H, W] or [H, W, 3] is one image."""
    is_single = isinstance(images, str | bytes | bytearray | Path | Image.Image)
    if is_single or getattr(images, "ndim", 0) in (2, 3):
        return [images]
    refuse_unordered(images, "images")
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        return images
    try:
        return list(images)
    except TypeError:
        raise UserError(
            f"Not an image: {images!r}. Give files, PIL images or uint8 arrays [H, W, 3]."
        ) from None


def refuse_unordered(values: Any, label: str) -> None:
    """Raises a UserError for a dict or a set: rows of embeddings need an order."""
    if isinstance(values, dict | set | frozenset):
        raise UserError(f"{label} are a {type(values).__name__}; give a list, which has an order.")


def read_image(image: Any) -> Any:
    """Reads a file path, the content of a file or a PIL image as uint8 [H, W, 3].

    Returns other values, such as arrays, unchanged.

    Raises:
      UserError: the file cannot be read, or is not an image.
    """
    if isinstance(image, Image.Image):
        return decoding.from_pil(image)
    if not isinstance(image, bytes | bytearray | str | Path):
        return image
    is_content = isinstance(image, bytes | bytearray)
    name = f"an image of {len(image):,} bytes" if is_content else f"image {image}"
    try:
        return decoding.decode(bytes(image) if is_content else read_bytes(image, MOST_FILE))
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{name} is {error}.") from None
