"""Pictures with their patches coloured by a value."""

import numpy as np
from PIL import Image

SIDE = 224  # pixels of an enlarged picture, at least
HOT = np.array([214, 40, 40], np.float32)  # colour of the largest value of a heat map


def enlarged(picture: np.ndarray, side: int = SIDE) -> np.ndarray:
    """A picture [S, S, 3] by a whole factor, to at least `side` pixels: uint8 [T, T, 3]."""
    factor = -(-side // picture.shape[0])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def heat(picture: np.ndarray, values: np.ndarray, most: float, side: int = SIDE) -> Image.Image:
    """A grey picture with its patches in red, the more the larger their value.

    Args:
      picture: uint8 [S, S, 3].
      values: [R, R]; 0 is left grey.
      most: the value that is the reddest.
      side: pixels of the result, at least.
    """
    base = enlarged(picture, side).astype(np.float32)  # [T, T, 3]
    grey = np.repeat(base.mean(axis=-1, keepdims=True), 3, axis=-1)
    strength = np.clip(values / most, 0, 1) if most > 0 else np.zeros_like(values)
    at = np.arange(len(base)) * len(values) // len(base)  # the patch of each pixel
    share = 0.75 * strength[at][:, at, None]  # [T, T, 1]
    return Image.fromarray(np.rint(grey * (1 - share) + HOT * share).astype(np.uint8))
