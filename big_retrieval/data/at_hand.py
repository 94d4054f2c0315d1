"""Values at hand as a source of records, such as a user gives to a trained model."""

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
    """Values as a source of records.

    Args:
      values: of one field, as its column holds them.
    """

    name = "the values"

    def __init__(self, values: Sequence[Any], field: Field) -> None:
        self._values, self._field = values, field

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self._field.record(self._values[index]))


class Images(Values):
    """Images as a source of records.

    Args:
      values: files, contents of files as bytes, PIL images or uint8 arrays [H, W, 3]; one of them
        alone is a list of one.
    """

    name = "images"

    def __init__(self, values: Any, field: Field) -> None:
        super().__init__(_several(values), field)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self._field.record(read_image(self._values[index])))


def _several(images: Any) -> Sequence[Any]:
    """Returns images as a sequence; an array [H, W] or [H, W, 3] is one image."""
    single = isinstance(images, str | bytes | bytearray | Path | Image.Image)
    if single or getattr(images, "ndim", 0) in (2, 3):
        return [images]
    refuse_unordered(images, "images")
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        return images
    try:
        return list(images)
    except TypeError:
        raise UserError(
            f"{images!r} is no image; give files, PIL images or uint8 arrays [H, W, 3]."
        ) from None


def refuse_unordered(values: Any, what: str) -> None:
    """Raises where values have no order that rows of embeddings could have.

    Raises:
      UserError: they are a dict or a set.
    """
    if isinstance(values, dict | set | frozenset):
        raise UserError(
            f"{what} are a {type(values).__name__}; give a list, whose order rows have."
        )


def read_image(image: Any) -> Any:
    """An image as uint8 [H, W, 3]: a file or its content, a PIL image, or such an array already.

    Raises:
      UserError: the file cannot be read or is no image.
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
