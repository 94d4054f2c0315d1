"""Images as numpy arrays: reading, cropping, resizing, flipping.

Everything is uint8 [H, W, 3] in RGB; the models' input normalisation happens on the device, so
that an image travels as one byte a value. Sizes are in pixels. Resizing is Pillow's bicubic filter
with antialiasing, which is what CLIP's preprocessing uses.
"""

import io
import math

import numpy as np
from PIL import Image, ImageOps

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # of values in [0, 1]
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_CROP_TRIES = 10


def decode(data: bytes) -> np.ndarray:
    """Reads an encoded image (JPEG, PNG, WebP, GIF, ...), upright and in RGB.

    The EXIF orientation is applied, transparency is laid over white, 16-bit grey is scaled to
    8 bits, and of an animation the first frame is taken.

    Args:
      data: the file's content.

    Returns:
      uint8 [H, W, 3].

    Raises:
      ValueError: the bytes are no image, or a damaged or an unreasonably large one.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return from_pil(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"not a readable image ({error})") from error


def from_pil(image: Image.Image) -> np.ndarray:
    """An open image, upright and in RGB as `decode` says: uint8 [H, W, 3]."""
    return np.asarray(_to_rgb(ImageOps.exif_transpose(image)))  # [H, W, 3]


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)  # [H, W]
        deep = image.mode.startswith("I;16") or values.max() > 255  # I and F do not say
        scale = 255.0 / 65535.0 if deep else 1.0
        grey = np.clip(values * scale + 0.5, 0, 255).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes to the given sides, whatever the aspect; the same array if nothing changes.

    Args:
      image: uint8 [H, W, 3].
      height: rows of the result.
      width: columns of the result.

    Returns:
      uint8 [height, width, 3].
    """
    if image.shape[:2] == (height, width):
        return image
    source = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(
        source.resize((width, height), Image.Resampling.BICUBIC)
    )  # [height, width, 3]


def random_resized_crop(
    image: np.ndarray,
    size: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> np.ndarray:
    """A random part of the image, resized to a square.

    The part's share of the area is uniform in `scale`, its width/height log-uniform in `ratio`, its
    place uniform. Where no such part fits in the image, the largest central one is taken.
    `scale == (1, 1)` means no crop: the whole image is resized and nothing is drawn.

    Args:
      image: uint8 [H, W, 3].
      size: side of the result.
      scale: smallest and largest share of the area, in (0, 1].
      ratio: smallest and largest width / height.
      rng: where the draws come from.

    Returns:
      uint8 [size, size, 3]; the same array if nothing changes.
    """
    if tuple(scale) != (1.0, 1.0):
        top, left, height, width = _crop_box(image.shape[0], image.shape[1], scale, ratio, rng)
        image = image[top : top + height, left : left + width]  # [height, width, 3]
    return resize(image, size, size)  # [size, size, 3]


def _crop_box(
    rows: int,
    columns: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Draws (top, left, height, width); see `random_resized_crop`."""
    for _ in range(_CROP_TRIES):
        area = rows * columns * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= columns and 0 < height <= rows:
            top = int(rng.integers(rows - height + 1))
            left = int(rng.integers(columns - width + 1))
            return top, left, height, width
    aspect = min(max(columns / rows, ratio[0]), ratio[1])
    width = max(1, min(columns, round(rows * aspect)))
    height = max(1, min(rows, round(columns / aspect)))
    return (rows - height) // 2, (columns - width) // 2, height, width


def resize_center_crop(image: np.ndarray, size: int) -> np.ndarray:
    """The short side resized to `size`, then the central square: CLIP's evaluation view.

    Args:
      image: uint8 [H, W, 3].
      size: side of the result.

    Returns:
      uint8 [size, size, 3]; the same array if nothing changes.
    """
    rows, columns = image.shape[:2]
    short = min(rows, columns)
    rows, columns = int(size * rows / short), int(size * columns / short)
    image = resize(image, rows, columns)  # [rows, columns, 3]
    top, left = round((rows - size) / 2), round((columns - size) / 2)
    return image[top : top + size, left : left + size]  # [size, size, 3]


def flip(image: np.ndarray) -> np.ndarray:
    """Mirrors left and right: uint8 [H, W, 3] -> [H, W, 3]."""
    return image[:, ::-1]
