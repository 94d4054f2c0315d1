"""Heat maps: pictures whose patches are colored by a value."""

import numpy as np
from PIL import Image

SIDE = 224  # minimum pixels of an enlarged picture
HOT = np.array([214, 40, 40], np.float32)  # color of the largest value


def enlarged(picture: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Enlarges a picture [S, S, 3] by an integer factor to at least `side` pixels."""
    factor = -(-side // picture.shape[0])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def heat(picture: np.ndarray, values: np.ndarray, limit: float, side: int = SIDE) -> Image.Image:
    """Draws a picture uint8 [S, S, 3] in gray, with patches of larger values in stronger red.

    A patch with the value 0 stays gray; `limit` or more gives the strongest red.
    """
    base = enlarged(picture, side).astype(np.float32)  # [T, T, 3]
    gray = np.repeat(base.mean(axis=-1, keepdims=True), 3, axis=-1)
    strength = np.clip(values / limit, 0, 1) if limit > 0 else np.zeros_like(values)
    patch = np.arange(len(base)) * len(values) // len(base)  # of each pixel
    share = 0.75 * strength[patch][:, patch, None]  # [T, T, 1]
    return Image.fromarray(np.rint(gray * (1 - share) + HOT * share).astype(np.uint8))
