"""Image files to pixels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageOps


class ImageReader:
    """Encodes images with the methods `encode` and `concatenate` of another base class."""

    IMAGES: ClassVar[dict[str, dict[str, Any]]]  # field -> arguments of `read_image`
    encode: Callable[..., Any]
    concatenate: Callable[..., Any]

    def encode_images(self, images: Sequence[Any], field: str = "", batch_size: int = 64) -> Any:
        """Returns embeddings of images: files, PIL images or uint8 arrays [H, W, 3].

        Args:
          field: the model's first field of images if empty.
        """
        field = field or next(iter(self.IMAGES))
        embeddings = []
        for start in range(0, len(images), batch_size):
            rows = images[start : start + batch_size]
            pixels = np.stack([read_image(image, **self.IMAGES[field]) for image in rows])
            embeddings.append(self.encode(field, pixels=pixels))
        return self.concatenate(embeddings)


def read_image(
    image: Any,
    size: int,
    resize: int = 0,
    squash: bool = False,
    interpolation: str = "bicubic",
    margin: str = "even",
) -> np.ndarray:
    """Returns the central square of a file, PIL image or array: RGB uint8 [size, size, 3].

    The short side, or both sides with `squash`, are resized to `resize` pixels first (0 for
    `size`). `margin` rounds half a pixel of margin: to "even", or "down".
    """
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    opened = Image.open(image) if isinstance(image, str | Path) else image
    picture = to_rgb(ImageOps.exif_transpose(opened))
    sides = (1, 1) if squash else picture.size
    columns, rows = (int((resize or size) * side / min(sides)) for side in sides)
    if (columns, rows) != picture.size:
        picture = picture.resize((columns, rows), Image.Resampling[interpolation.upper()])
    to_integer = int if margin == "down" else round
    left, top = to_integer((columns - size) / 2), to_integer((rows - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts to RGB: transparency over white, the upper 8 bits of 16-bit gray."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image).astype(np.float64))  # [H, W]
        deep = image.mode.startswith("I;16") or values.max() > 255
        values = values * (255 / 65535 if deep else 1)
        return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")
