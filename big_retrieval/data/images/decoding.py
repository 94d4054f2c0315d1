"""From the bytes of an image file to pixels.

Files are untrusted. Only bitmap formats are opened, and `limits.py` checks sizes and memory before
anything is decoded. Any problem of a file raises a `ValueError`, whose message completes the words
"the image is".
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from big_retrieval.data.damage import format_exception
from big_retrieval.data.images.bands import Box, from_pil, part_of, upright_size
from big_retrieval.data.images.limits import LARGEST, Unreasonable, check_size
from big_retrieval.errors import Damaged

Decoder = Literal["pillow", "opencv"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_open` checks the size
# Pillow warns of every unusual tag of a file, and files from the web have millions of them.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Encoded:
    """Undecoded content of an image file. It is decoded when the size in the batch is known.

    Attributes:
      path: absolute path of the file; empty for content of another file, such as a shard.
    """

    data: bytes
    place: str = "an image"
    path: str = ""


@dataclass(frozen=True)
class OneOf:
    """Several images of one object: training draws one, evaluation takes the first.

    Attributes:
      load: reads an image by its index, as `Encoded` or an array.
    """

    count: int
    load: Callable[[int], Any]


def decode(data: bytes) -> np.ndarray:
    """Reads an encoded image (`FORMATS`) as uint8 [H, W, 3], upright and in RGB.

    Applies the EXIF orientation, lays transparency over white, and scales 16-bit grey and floats
    from 0 to 1 to 8 bits. An animation gives its first frame.

    Raises:
      ValueError: not an image, or a damaged, too large or too small image.
    """
    with _open(data) as image:
        return from_pil(image)


def decode_part(
    data: bytes,
    choose: Callable[[int, int], Box],
    min_side: int,
    *,
    reduced: bool = True,
    decoder: Decoder = "pillow",
) -> Image.Image | np.ndarray:
    """Reads a part of an encoded image; raises like `decode`.

    Args:
      choose: (height, width) of the upright image -> the part, in pixels.
      min_side: minimum side of the part in pixels, if the image is large enough.
      reduced: True to decode JPEG files at 1/2, 1/4 or 1/8 if `min_side` allows it.
      decoder: decoder of RGB and grey JPEG files; Pillow decodes all others.

    Returns:
      The part in RGB, as a Pillow image or (OpenCV) uint8 [h, w, 3].
    """
    with _open(data) as image:
        if image.format == "TIFF":
            image.load()  # turns the pixels; Pillow reports the upright size before
        size = upright_size(image)
        box = choose(*size)
        jpeg = image.format == "JPEG" and image.mode in ("RGB", "L")
        scale = 1
        while jpeg and reduced and scale < 8 and min(box[2:]) >= 2 * scale * min_side:
            scale *= 2
        if jpeg and decoder == "opencv" and b"\xff\xd9" in data[-64:]:  # not truncated
            pixels = _opencv(data, scale)
            top, left, bottom, right = _edges(box, size, pixels.shape[:2])
            return pixels[top:bottom, left:right]  # [h, w, 3]
        if scale > 1:
            image.draft(image.mode, (image.width // scale, image.height // scale))
        image.load()
        return part_of(image, _edges(box, size, upright_size(image)))  # no numpy copy of the whole


def _edges(box: Box, size: tuple[int, int], scaled: tuple[int, ...]) -> Box:
    """Returns top, left, bottom and right of a part, in an image decoded at another size."""
    top, left, height, width = box
    down, across = scaled[0] / size[0], scaled[1] / size[1]
    ends = round((top + height) * down), round((left + width) * across)
    return round(top * down), round(left * across), *ends


def picture(value: Any, place: str = "an image") -> np.ndarray:
    """Decodes a record's image (the first of several), uint8 [H, W, 3]; may raise `Damaged`."""
    if isinstance(value, OneOf):
        value = value.load(0)
    if isinstance(value, Encoded):
        with damaged_at(value.place):
            return decode(value.data)
    return as_array(value, place)


@contextmanager
def damaged_at(place: str) -> Iterator[None]:
    """Turns errors of `decode` and `decode_part` into `Damaged` at this location."""
    try:
        yield
    except ValueError as error:
        raise Damaged(place, f"the image is {error}") from None


def as_array(value: Any, place: str) -> np.ndarray:
    """Returns pixels as uint8 [H, W, 3]; converts grey and RGBA, raises `Damaged` for others."""
    if value is None:
        raise Damaged(place, "there is no image (None)")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        label = f"{value.dtype} numbers" if isinstance(value, np.ndarray) else type(value).__name__
        raise Damaged(place, f"the image is {label}, not an image file or uint8 [H, W, 3]")
    if value.ndim == 3 and value.shape[-1] == 3 and value.size:
        return value
    grey = value.ndim == 2 or (value.ndim == 3 and value.shape[-1] == 1)
    if value.size and (grey or (value.ndim == 3 and value.shape[-1] == 4)):
        return from_pil(Image.fromarray(value.squeeze(-1) if grey and value.ndim == 3 else value))
    raise Damaged(place, f"the image has the shape {list(value.shape)}, not [H, W, 3]")


@contextmanager
def _open(data: bytes) -> Iterator[Image.Image]:
    """Opens an image file and checks its size; any error in the context becomes a `ValueError`."""
    if not data:
        raise ValueError("empty (0 bytes)")
    if data.lstrip()[:1] == b"<" and b"<html" in data[:1024].lower():
        raise ValueError("an HTML page")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_size(image, data)
            yield image
    except Image.DecompressionBombError:
        raise ValueError(f"larger than {LARGEST // 10**6} megapixels") from None
    except UnidentifiedImageError:
        raise ValueError("not an image in a known format") from None
    except Unreasonable as error:
        raise ValueError(str(error)) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError) as error:
        raise ValueError(f"not a readable image ({error})") from error
    except Exception as error:  # decoders of arbitrary bytes raise any type
        raise ValueError(f"not a readable image ({format_exception(error)})") from error


def _opencv(data: bytes, scale: int) -> np.ndarray:
    """Decodes a JPEG file with OpenCV at 1/scale, upright: uint8 [h, w, 3]."""
    import cv2

    flag = cv2.IMREAD_COLOR if scale == 1 else getattr(cv2, f"IMREAD_REDUCED_COLOR_{scale}")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
