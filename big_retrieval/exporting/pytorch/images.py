"""From image files to pixels."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def read_image(
    image: Any,
    size: int,
    resize: int = 0,
    squash: bool = False,
    interpolation: str = "bicubic",
    margin: str = "even",
) -> np.ndarray:
    """The central square of an image, upright and in RGB: uint8 [size, size, 3].

    Args:
      image: a file, a PIL image, or uint8 [H, W, 3].
      size: side of the square in pixels.
      resize: what the short side is resized to first; 0: to `size`.
      squash: True if both sides are resized to that.
      interpolation: filter of the resizing.
      margin: rounding of half a pixel of margin: to "even", or "down".
    """
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    opened = Image.open(image) if isinstance(image, str | Path) else image
    picture = to_rgb(ImageOps.exif_transpose(opened))
    sides = (1, 1) if squash else picture.size
    columns, rows = (int((resize or size) * side / min(sides)) for side in sides)
    if (columns, rows) != picture.size:
        picture = picture.resize((columns, rows), Image.Resampling[interpolation.upper()])
    whole = int if margin == "down" else round
    left, top = whole((columns - size) / 2), whole((rows - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def to_rgb(image: Image.Image) -> Image.Image:
    """Transparency over white, grey of 16 bits by its upper 8."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image).astype(np.float64))  # [H, W]
        deep = image.mode.startswith("I;16") or values.max() > 255
        values = values * (255 / 65535 if deep else 1)
        return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")
