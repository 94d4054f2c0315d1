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
from big_retrieval.data.images.limits import (
    LARGEST,
    ORIENTATION,
    TURNED,
    Unreasonable,
    check_icon,
    check_size,
)
from big_retrieval.errors import Damaged

Decoder = Literal["pillow", "opencv"]
Box = tuple[int, int, int, int]  # top, left, height, width

BAND = 2**19  # pixels that are converted at a time: a conversion takes up to 40 bytes for each
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO")
_TURN = {  # EXIF orientation -> what makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

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
      place: where it comes from, for messages.
    """

    data: bytes
    place: str = "an image"


@dataclass(frozen=True)
class OneOf:
    """Several images of the same thing: training draws one, evaluation takes the first.

    Attributes:
      count: how many, at least two.
      load: reads one by its number, as `Encoded` or an array.
    """

    count: int
    load: Callable[[int], Any]


def decode(data: bytes) -> np.ndarray:
    """Reads an encoded image (JPEG, PNG, WebP, GIF, ...), upright and in RGB.

    The EXIF orientation is applied, transparency is laid over white, 16-bit grey is scaled to
    8 bits, and of an animation the first frame is taken.

    Args:
      data: the file's content.

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
      data: the file's content.
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
        return _part(image, _edges(box, size, upright_size(image)))  # no numpy copy of the whole


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


def from_pil(image: Image.Image) -> np.ndarray:
    """An open image, upright and in RGB as `decode` says: uint8 [H, W, 3]."""
    image.load()
    height, width = upright_size(image)
    pixels = np.empty((height, width, 3), np.uint8)  # [H, W, 3]
    for top, band in _bands(image, (0, 0, height, width)):
        pixels[top : top + band.height] = np.asarray(band)
    return pixels


def _part(image: Image.Image, edges: Box) -> Image.Image:
    """A part of a loaded image, upright and in RGB.

    Args:
      image: the image.
      edges: top, left, bottom and right of the part in the upright image.
    """
    top, left, bottom, right = edges
    if (right - left) * (bottom - top) <= BAND:
        return next(_bands(image, edges))[1]
    part = Image.new("RGB", (right - left, bottom - top))
    for row, band in _bands(image, edges):
        part.paste(band, (0, row))
    return part


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1, which is upright, where the EXIF data cannot be read."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # bytes of any kind, read by Python code of Pillow's
        return 1
    return found if isinstance(found, int) else 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) behind the EXIF orientation."""
    turned = _orientation(image) in TURNED
    return (image.width, image.height) if turned else (image.height, image.width)


@contextmanager
def _open(data: bytes) -> Iterator[Image.Image]:
    """An image file whose size is reasonable; what its user raises becomes a `ValueError` too."""
    if not data:
        raise ValueError("empty (0 bytes)")
    if data.lstrip()[:1] == b"<" and b"<html" in data[:1024].lower():
        raise ValueError("an HTML page")
    try:
        check_icon(data)
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


def _bands(image: Image.Image, edges: Box) -> Iterator[tuple[int, Image.Image]]:
    """(row, band): a part of a loaded image, upright and in RGB, as bands of some `BAND` pixels.

    Only a band at a time is turned and converted: as a whole, Pillow would hold the pixels up to
    four times.

    Args:
      image: the image.
      edges: top, left, bottom and right of the part in the upright image.
    """
    orientation = _orientation(image)
    turn, deep = _TURN.get(orientation), _is_deep(image)
    top, left, bottom, right = edges
    for first, last in _rows(top, bottom, right - left):
        band = image.crop(_stored(image, orientation, (first, left, last, right)))
        yield first - top, _band_to_rgb(band if turn is None else band.transpose(turn), deep)


def _stored(image: Image.Image, orientation: int, edges: Box) -> Box:
    """Where a part of the upright image is stored: left, top, right and bottom."""
    top, left, bottom, right = edges
    if orientation in TURNED:
        top, left, bottom, right = left, top, right, bottom
    if orientation in (3, 4, 6, 7):
        top, bottom = image.height - bottom, image.height - top
    if orientation in (2, 3, 7, 8):
        left, right = image.width - right, image.width - left
    return left, top, right, bottom


def _is_deep(image: Image.Image) -> bool:
    """Whether the numbers of a grey image go to 65,535."""
    if image.mode not in ("I", "F"):  # which do not say how many bits count
        return image.mode.startswith("I;16")
    width, height = image.size
    bands = (image.crop((0, top, width, bottom)) for top, bottom in _rows(0, height, width))
    return bool(max(np.asarray(band).max() for band in bands) > 255)


def _rows(top: int, bottom: int, width: int) -> Iterator[tuple[int, int]]:
    """The first row of each band of some `BAND` pixels, and the row behind its last."""
    rows = max(1, BAND // max(1, width))
    for first in range(top, bottom, rows):
        yield first, min(first + rows, bottom)


def _band_to_rgb(image: Image.Image, deep: bool) -> Image.Image:
    """RGB from any mode; `deep`: of numbers that go to 65,535."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image).astype(np.float64))  # [H, W]
        scale = 255.0 / 65535.0 if deep else 1.0
        grey = np.clip(values * scale + 0.5, 0, 255).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


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
