"""Pixels of an opened image, upright and in RGB, a band of rows at a time."""

from collections.abc import Iterator

import numpy as np
from PIL import Image

from big_retrieval.data.images.limits import ORIENTATION, TURNED

Box = tuple[int, int, int, int]  # top, left, then height and width, or bottom and right
BAND = 2**19  # pixels to convert at a time: a conversion takes up to 40 bytes per pixel
_TURN = {  # EXIF orientation -> operation that makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def from_pil(image: Image.Image) -> np.ndarray:
    """Returns an open image, upright and in RGB like `decode`: uint8 [H, W, 3]."""
    image.load()
    height, width = upright_size(image)
    pixels = np.empty((height, width, 3), np.uint8)  # [H, W, 3]
    for top, band in _bands(image, (0, 0, height, width)):
        pixels[top : top + band.height] = np.asarray(band)
    return pixels


def part_of(image: Image.Image, edges: Box) -> Image.Image:
    """Returns a part of a loaded image, upright and in RGB.

    Args:
      edges: top, left, bottom and right of the part in the upright image.
    """
    top, left, bottom, right = edges
    if (right - left) * (bottom - top) <= BAND:
        return next(_bands(image, edges))[1]
    cut = Image.new("RGB", (right - left, bottom - top))
    for row, band in _bands(image, edges):
        cut.paste(band, (0, row))
    return cut


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation; 1 (upright) if the EXIF data cannot be read."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # Pillow reads arbitrary bytes
        return 1
    return orientation if isinstance(orientation, int) else 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Returns (height, width) after the EXIF orientation."""
    turned = _orientation(image) in TURNED
    return (image.width, image.height) if turned else (image.height, image.width)


def _bands(image: Image.Image, edges: Box) -> Iterator[tuple[int, Image.Image]]:
    """Yields (row, band) of a part of a loaded image, upright and in RGB.

    Bands save memory: turning and converting a whole image needs up to four copies of its pixels.
    """
    orientation = _orientation(image)
    turn, scale = _TURN.get(orientation), _grey_scale(image)
    top, left, bottom, right = edges
    for first, last in _rows(top, bottom, right - left):
        band = image.crop(_stored(image, orientation, (first, left, last, right)))
        yield first - top, _band_to_rgb(band if turn is None else band.transpose(turn), scale)


def _stored(image: Image.Image, orientation: int, edges: Box) -> Box:
    """Converts edges in the upright image to left, top, right and bottom in the stored image."""
    top, left, bottom, right = edges
    if orientation in TURNED:
        top, left, bottom, right = left, top, right, bottom
    if orientation in (3, 4, 6, 7):
        top, bottom = image.height - bottom, image.height - top
    if orientation in (2, 3, 7, 8):
        left, right = image.width - right, image.width - left
    return left, top, right, bottom


def _grey_scale(image: Image.Image) -> float:
    """Returns the factor from the values of a deep grey image to 0 .. 255.

    In modes "I" and "F", the number of significant bits follows from the largest value.
    """
    if image.mode not in ("I", "F"):
        return 255.0 / 65535.0 if image.mode.startswith("I;16") else 1.0
    width, height = image.size
    bands = (image.crop((0, top, width, bottom)) for top, bottom in _rows(0, height, width))
    largest = max(float(np.nan_to_num(np.asarray(band)).max()) for band in bands)
    if largest > 65535:
        raise ValueError(f"its grey values go to {largest:g}; save it with 8 or 16 bits")
    if image.mode == "F" and largest <= 1:
        return 255.0
    return 255.0 / 65535.0 if largest > 255 else 1.0


def _rows(top: int, bottom: int, width: int) -> Iterator[tuple[int, int]]:
    """Yields the start and the stop row of each band of about `BAND` pixels."""
    rows = max(1, BAND // max(1, width))
    for first in range(top, bottom, rows):
        yield first, min(first + rows, bottom)


def _band_to_rgb(image: Image.Image, scale: float) -> Image.Image:
    """Converts any mode to RGB; `scale` is `_grey_scale` of the whole image."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image).astype(np.float64))  # [H, W]
        grey = np.clip(values * scale + 0.5, 0, 255).astype(np.uint8)
        transparent = image.info.get("transparency")  # one value of 16-bit PNG files
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
