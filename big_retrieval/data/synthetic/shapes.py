"""Drawing of generated scenes: shapes, colours, backgrounds and noise at any size."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray

COLOURS = {
    "red": (214, 36, 36),
    "orange": (250, 140, 20),
    "yellow": (245, 225, 50),
    "green": (34, 150, 54),
    "cyan": (60, 210, 215),
    "blue": (40, 70, 220),
    "purple": (130, 40, 165),
    "pink": (250, 130, 190),
}
BACKGROUNDS = ("light", "dark", "gradient", "checker")
RADII = (0.23, 0.14)  # of big and small shapes, as a share of the image's side

_OVERSAMPLE = 8
_NOISE = 8  # largest deviation of a value


def _star(x: Array, y: Array) -> Array:
    turn = 2 * np.pi / 5
    angle = np.abs((np.arctan2(x, -y) + turn / 2) % turn - turn / 2)  # from the nearest tip
    radius = np.hypot(x, y)
    inner = 0.42
    tip, dent = np.array([1.0, 0.0]), inner * np.array([np.cos(turn / 2), np.sin(turn / 2)])
    px, py = radius * np.cos(angle), radius * np.sin(angle)
    edge = dent - tip
    return edge[0] * (py - tip[1]) - edge[1] * (px - tip[0]) > 0


def _heart(x: Array, y: Array) -> Array:
    lobes = np.hypot(np.abs(x) - 0.46, y + 0.36) < 0.53
    return lobes | ((np.abs(x) < 0.88 - 0.92 * (y + 0.05)) & (y > 0.0))


# True inside, for x to the right and y downwards in [-1, 1].
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) < 0.97,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.86,
    "triangle": lambda x, y: (y < 0.85) & (np.abs(x) < 0.55 * (y + 1.0)),
    "diamond": lambda x, y: np.abs(x) / 0.68 + np.abs(y) < 1.0,
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.3) & (np.abs(x + y) < 1.9),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) < 0.24,
    "star": _star,
    "heart": _heart,
}


@functools.cache
def mask(shape: int, radius: float) -> Array:
    """Returns the antialiased picture of a shape.

    Args:
      shape: index into `SHAPES`.
      radius: in pixels.

    Returns:
      float32 [K, K, 1] in [0, 1], K odd; read-only, shared by all callers.
    """
    reach = int(np.ceil(radius))
    side = 2 * reach + 1
    fine = (np.arange(side * _OVERSAMPLE) + 0.5) / _OVERSAMPLE - side / 2  # pixels from the middle
    inside = list(SHAPES.values())[shape](fine[None, :] / radius, fine[:, None] / radius)
    blocks = inside.reshape(side, _OVERSAMPLE, side, _OVERSAMPLE)
    picture = blocks.mean((1, 3), dtype=np.float32)[..., None]  # [K, K, 1]
    picture.flags.writeable = False
    return picture


@functools.cache
def background(kind: int, size: int) -> Array:
    """Returns a grey background; all except the checker are symmetric from left to right.

    Args:
      kind: index into `BACKGROUNDS`.

    Returns:
      float32 [size, size, 3]; read-only, shared by all callers.
    """
    rows, columns = np.mgrid[0:size, 0:size] * (32 / size)  # in 32nds of the side
    checker = 150.0 + 40.0 * ((rows // 8 + columns // 8) % 2)
    flat = np.ones((size, size))
    grey = (225.0 * flat, 25.0 * flat, 60.0 + 4.0 * rows, checker)[kind]
    picture = np.repeat(grey[..., None], 3, axis=-1).astype(np.float32)  # [size, size, 3]
    picture.flags.writeable = False
    return picture


@functools.cache
def _noise_table() -> Array:
    """Returns byte -> deviation, nearly normal for uniform bytes; [256] float32."""
    ordered = np.sort(np.random.default_rng(0).normal(size=256))
    table = (ordered / np.abs(ordered).max() * _NOISE).astype(np.float32)
    table.flags.writeable = False
    return table


# (shape, colour, size, x, y): indices into `SHAPES`, `COLOURS` and `RADII`, and the centre as a
# share of the side.
Object = tuple[int, int, int, float, float]


def place(size: int, drawn: Object) -> tuple[tuple[slice, slice], Array]:
    """Returns the slices of a picture that an object covers, and its coverage [<=K, <=K, 1]."""
    shape, _, extent, x, y = drawn
    picture = mask(shape, RADII[extent] * size)  # [K, K, 1]
    reach = len(picture) // 2
    row, column = int(y * size), int(x * size)
    top, left = max(0, row - reach), max(0, column - reach)
    where = slice(top, min(size, row + reach + 1)), slice(left, min(size, column + reach + 1))
    rows, columns = (extent_slice.stop - extent_slice.start for extent_slice in where)
    skip_y, skip_x = top - (row - reach), left - (column - reach)
    return where, picture[skip_y : skip_y + rows, skip_x : skip_x + columns]


def cover(size: int, drawn: Object) -> Array:
    """Returns an object's coverage of each pixel, float32 [size, size]."""
    where, alpha = place(size, drawn)
    out = np.zeros((size, size), np.float32)
    out[where] = alpha[..., 0]
    return out


def draw_scene(size: int, kind: int, objects: Sequence[Object], rng: np.random.Generator) -> Array:
    """Draws a scene.

    Args:
      kind: index into `BACKGROUNDS`.
      objects: objects from back to front.

    Returns:
      uint8 [size, size, 3].
    """
    canvas = background(kind, size).copy()  # [S, S, 3]
    paints = np.array(list(COLOURS.values()), np.float32)
    for drawn in objects:
        where, alpha = place(size, drawn)
        covered = canvas[where]  # [<=K, <=K, 3]
        covered += alpha * (paints[drawn[1]] - covered)
    noise = np.frombuffer(rng.bytes(canvas.size), np.uint8).reshape(canvas.shape)
    canvas += _noise_table()[noise]
    np.clip(canvas, 0, 255, out=canvas)
    return canvas.astype(np.uint8)
