"""From the bytes of an image file to pixels.

Files are untrusted: only bitmap formats are opened, sizes and the memory that decoding would take
are looked at before anything is decoded (`image_limits`), and whatever is wrong with a file is a
`ValueError` in words that follow "is".
"""

import contextlib
import ctypes
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from big_retrieval.data.damage import told
from big_retrieval.data.images.bands import Box, from_pil, part_of, upright_size
from big_retrieval.data.images.limits import (
    LARGEST,
    Unreasonable,
    check_size,
)
from big_retrieval.errors import Damaged

Decoder = Literal["pillow", "opencv"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_open` refuses those sizes
# Pillow and libtiff warn of every odd tag of a file; what matters is an exception, and a crawl of
# the web has millions of such tags.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Encoded:
    """An image as the content of its file, decoded when its size in the batch is known.

    Attributes:
      data: the file's content.
      path: absolute path of the file; empty for the content of another file.
    """

    data: bytes
    place: str = "an image"
    path: str = ""


@dataclass(frozen=True)
class OneOf:
    """Several images of the same thing: training draws one, evaluation takes the first.

    Attributes:
      load: reads one by its number, as `Encoded` or an array.
    """

    count: int
    load: Callable[[int], Any]


def decode(data: bytes) -> np.ndarray:
    """Reads an encoded image (JPEG, PNG, WebP, GIF, ...), upright and in RGB.

    The EXIF orientation is applied, transparency is laid over white, 16-bit grey and
    floats from 0 to 1 are scaled to 8 bits, and of an animation the first frame is taken.

    Returns:
      uint8 [H, W, 3].

    Raises:
      ValueError: the bytes are no image, or a damaged or an unreasonably large or small one.
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
    """Reads a part of an encoded image, of JPEG files at a smaller scale where that is enough.

    Args:
      choose: (height, width) of the upright image -> the part, in its pixels.
      min_side: the part keeps at least so many pixels on both sides, where it has them.
      reduced: whether JPEG files may be decoded at 1/2, 1/4 or 1/8.
      decoder: what decodes RGB and grey JPEG files; all others are Pillow's.

    Returns:
      The part in RGB, as what its decoder made: a Pillow image or uint8 [h, w, 3].

    Raises:
      ValueError: as `decode`.
    """
    with _open(data) as image:
        if image.format == "TIFF":
            image.load()  # Pillow turns it here, and has said its size as if it were
        size = upright_size(image)
        box = choose(*size)
        jpeg = image.format == "JPEG" and image.mode in ("RGB", "L")
        scale = 1
        while jpeg and reduced and scale < 8 and min(box[2:]) >= 2 * scale * min_side:
            scale *= 2
        if jpeg and decoder == "opencv" and b"\xff\xd9" in data[-64:]:  # a cut file is Pillow's
            pixels = _opencv(data, scale)
            top, left, bottom, right = _edges(box, size, pixels.shape[:2])
            return pixels[top:bottom, left:right]  # [h, w, 3]
        if scale > 1:
            image.draft(image.mode, (image.width // scale, image.height // scale))
        image.load()
        return part_of(image, _edges(box, size, upright_size(image)))  # no numpy copy of the whole


def _edges(box: Box, size: tuple[int, int], scaled: tuple[int, ...]) -> Box:
    """Top, left, bottom and right of a part of an image that was decoded at another size."""
    top, left, height, width = box
    down, across = scaled[0] / size[0], scaled[1] / size[1]
    ends = round((top + height) * down), round((left + width) * across)
    return round(top * down), round(left * across), *ends


def picture(value: Any, place: str = "an image") -> np.ndarray:
    """A record's image, decoded if it is not: uint8 [H, W, 3]; of several the first.

    Raises:
      Damaged: it cannot be decoded, or is no image.
    """
    if isinstance(value, OneOf):
        value = value.load(0)
    if isinstance(value, Encoded):
        with damaged_at(value.place):
            return decode(value.data)
    return as_array(value, place)


@contextmanager
def damaged_at(place: str) -> Iterator[None]:
    """What `decode` and `decode_part` raise becomes `Damaged` at that place."""
    try:
        yield
    except ValueError as problem:
        raise Damaged(place, f"the image is {problem}") from None


def as_array(value: Any, place: str) -> np.ndarray:
    """Pixels at hand as uint8 [H, W, 3]; grey and RGBA ones are converted.

    Raises:
      Damaged: another type or shape.
    """
    if value is None:
        raise Damaged(place, "there is no image (None)")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        kind = f"{value.dtype} numbers" if isinstance(value, np.ndarray) else type(value).__name__
        raise Damaged(place, f"the image is {kind}, not an image file or uint8 [H, W, 3]")
    if value.ndim == 3 and value.shape[-1] == 3 and value.size:
        return value
    grey = value.ndim == 2 or (value.ndim == 3 and value.shape[-1] == 1)
    if value.size and (grey or (value.ndim == 3 and value.shape[-1] == 4)):
        return from_pil(Image.fromarray(value.squeeze(-1) if grey and value.ndim == 3 else value))
    raise Damaged(place, f"the image has the shape {list(value.shape)}, not [H, W, 3]")


@contextmanager
def _open(data: bytes) -> Iterator[Image.Image]:
    """An image file whose size is reasonable; what its user raises becomes a `ValueError` too."""
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
    except Unreasonable as problem:
        raise ValueError(str(problem)) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError) as problem:
        raise ValueError(f"not a readable image ({problem})") from problem
    except Exception as problem:  # decoders raise whatever the bytes of a file lead them to
        raise ValueError(f"not a readable image ({told(problem)})") from problem


def _silence_libtiff() -> None:
    """Keeps libtiff from printing, where the system tells which library Pillow has loaded."""
    with contextlib.suppress(OSError, AttributeError):
        found = re.search(r"(/\S*libtiff\S*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
        if found:
            library = ctypes.CDLL(found[1])
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)


_silence_libtiff()


def _opencv(data: bytes, scale: int) -> np.ndarray:
    """A JPEG file by OpenCV at 1/scale, upright: uint8 [h, w, 3]."""
    import cv2

    kinds = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    kind = kinds.get(scale, cv2.IMREAD_COLOR if scale == 1 else cv2.IMREAD_REDUCED_COLOR_8)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), kind)
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
