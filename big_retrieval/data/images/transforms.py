"""Images as numpy arrays: cropping, resizing, flipping.

All images are uint8 [H, W, 3] in RGB: normalization happens on the device, so that a value is
transferred as one byte. Sizes are in pixels. By default, resizing uses Pillow's bicubic filter with
antialiasing, as CLIP's preprocessing does.
"""

import math
from typing import Any, Literal

import numpy as np
from PIL import Image

from big_retrieval.data.images.bands import Box
from big_retrieval.data.images.decoding import (
    Decoder,
    Encoded,
    OneOf,
    as_array,
    damaged_at,
    decode_part,
    picture,
)

Interpolation = Literal["bicubic", "bilinear"]
Margin = Literal["even", "down"]
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # of values in [0, 1]
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_CROP_TRIES = 10
_ERASED_SHARE = (0.02, 0.33)  # of the area
_ERASED_RATIO = (1 / 3.3, 1 / 0.3)  # width/height


def resize(
    image: np.ndarray | Image.Image,
    height: int,
    width: int,
    *,
    decoder: Decoder = "pillow",
    interpolation: Interpolation = "bicubic",
) -> np.ndarray:
    """Resizes both sides, uint8 [H, W, 3] or RGB image -> uint8 [height, width, 3].

    Returns the same pixels if the size is unchanged. The decoder "opencv" uses the area average
    (bicubic to enlarge) instead of `interpolation`.
    """
    is_array = isinstance(image, np.ndarray)
    rows, columns = image.shape[:2] if is_array else (image.height, image.width)
    if (rows, columns) == (height, width):
        return np.asarray(image)
    if decoder == "opencv":
        import cv2

        shrinks = rows > height and columns > width
        method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        return cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=method)
    if isinstance(image, np.ndarray):
        image = Image.fromarray(np.ascontiguousarray(image))
    resized = image.resize((width, height), _FILTERS[interpolation])
    return np.asarray(resized)  # [height, width, 3]


def training_view(
    image: Any,
    size: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
    reduced: bool = True,
    decoder: Decoder = "pillow",
    place: str = "an image",
) -> np.ndarray:
    """Returns a random part of an image (`crop_box`), resized to uint8 [size, size, 3].

    Args:
      image: uint8 [H, W, 3], `Encoded`, or `OneOf` to draw one of several.
      scale: smallest and largest share of the area, in (0, 1]; (1, 1) for no crop.
      ratio: smallest and largest width / height.
      reduced, decoder: arguments of `decode_part`.

    Raises:
      Damaged: the image cannot be read.
    """
    if isinstance(image, OneOf):
        image = image.load(int(rng.integers(image.count)))

    def choose(rows: int, columns: int) -> Box:
        if tuple(scale) == (1.0, 1.0):
            return 0, 0, rows, columns
        return crop_box(rows, columns, scale, ratio, rng)

    if isinstance(image, Encoded):
        with damaged_at(image.place):
            crop = decode_part(image.data, choose, size, reduced=reduced, decoder=decoder)
    else:
        image = as_array(image, place)
        top, left, height, width = choose(*image.shape[:2])
        crop = image[top : top + height, left : left + width]  # [height, width, 3]
    return resize(crop, size, size, decoder=decoder)  # [size, size, 3]


def evaluation_view(
    image: Any,
    size: int,
    short: int = 0,
    *,
    squash: bool = False,
    interpolation: Interpolation = "bicubic",
    margin: Margin = "even",
    place: str = "an image",
) -> np.ndarray:
    """Resizes the short side and crops the central square, uint8 [size, size, 3].

    By default, the pixels equal CLIP's preprocessing. May return the input array, unchanged.

    Args:
      image: uint8 [H, W, 3], `Encoded`, or `OneOf` for the first of several.
      short: length of the resized short side, `size` or more; 0 for `size`.
      squash: True to resize both sides to this length.
      margin: rounding of a margin of n + 1/2 pixels: to even (torchvision), or down (transformers).

    Raises:
      Damaged: the image cannot be read.
    """
    image = picture(image, place)
    (rows, columns), target = image.shape[:2], short or size
    least = min(rows, columns)
    rows, columns = int(target * rows / least), int(target * columns / least)
    rows, columns = (target, target) if squash else (rows, columns)
    image = resize(image, rows, columns, interpolation=interpolation)  # [rows, columns, 3]
    to_integer = round if margin == "even" else math.floor
    top, left = to_integer((rows - size) / 2), to_integer((columns - size) / 2)
    return image[top : top + size, left : left + size]  # [size, size, 3]


def crop_box(
    rows: int,
    columns: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Box:
    """Draws a part of an image: (top, left, height, width).

    Its share of the area is uniform in `scale`, its width/height log-uniform in `ratio`, and its
    place uniform. If no such part fits in the image, it is the largest part in the center.
    """
    box = _draw_box(rows, columns, scale, ratio, rng)
    if box is not None:
        return box
    aspect = min(max(columns / rows, ratio[0]), ratio[1])
    width = max(1, min(columns, round(rows * aspect)))
    height = max(1, min(rows, round(columns / aspect)))
    return (rows - height) // 2, (columns - width) // 2, height, width


def _draw_box(
    rows: int,
    columns: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Box | None:
    """Draws a part of an image; None if no try fits in the image."""
    for _ in range(_CROP_TRIES):
        area = rows * columns * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= columns and 0 < height <= rows:
            top = int(rng.integers(rows - height + 1))
            left = int(rng.integers(columns - width + 1))
            return top, left, height, width
    return None


def erase(
    image: np.ndarray, color: tuple[float, float, float], rng: np.random.Generator
) -> np.ndarray:
    """Returns a copy with a drawn rectangle in a color [0, 1]: Random Erasing, as in torchvision.

    Its share of the area is uniform in 0.02 to 0.33, its height/width log-uniform in 0.3 to 3.3.
    Returns the input array if none of ten drawn rectangles fits.
    """
    rows, columns = image.shape[:2]
    box = _draw_box(rows, columns, _ERASED_SHARE, _ERASED_RATIO, rng)
    if box is None:
        return image
    top, left, height, width = box
    out = image.copy()
    out[top : top + height, left : left + width] = np.round(np.multiply(color, 255))
    return out
