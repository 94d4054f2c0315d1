"""From a checkpoint's tower to one of ours: positions resized, class tokens added, all said.

Nothing is left out in silence: what was changed on purpose is returned as notes, everything else
that does not fit is an error that names it.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from big_retrieval.config import Bert, ResNet, ViT
from big_retrieval.errors import UserError
from big_retrieval.interop.source import Flat, Part

NOISE = 0.02  # of copied class tokens, as a share of the table's deviation: equal ones stay equal
# Attributes of a tower that say how it computes; the others are sizes of tables or how it is run.
SAME = {
    "vit": (
        "patch", "width", "depth", "heads", "mlp", "pool", "norm_first", "patch_bias", "epsilon",
        "activation",
    ),
    "bert": (
        "width", "depth", "heads", "mlp", "norm", "final_norm", "causal", "token_types",
        "relative_positions", "epsilon", "activation",
    ),
    "resnet": ("blocks", "bottleneck", "stem"),
}  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A tower's parameters as the model takes them.

    Attributes:
      params: path below the tower -> array.
      notes: what was changed on purpose, a sentence each.
    """

    params: Flat
    notes: list[str]


def check_same(path: str, tower: ViT | Bert | ResNet, part: Part, origin: str) -> None:
    """Raises where a configured tower computes something else than the checkpoint's.

    Args:
      path: of the tower in the config, e.g. config.towers.image.
      tower: as configured.
      part: of the checkpoint.
      origin: the file, for the message.

    Raises:
      UserError: names all keys that differ, with the checkpoint's values.
    """
    if type(tower) is not type(part.tower):
        raise UserError(
            f"{path}.type is {tower.type!r}, but {origin} holds {part.kind.name}: name another "
            "tower in config.init."
        )
    keys = [key for key in SAME[tower.type] if not _equal(tower, part.tower, key)]
    if keys:
        flags = " ".join(f"--{path}.{key}={getattr(part.tower, key)}" for key in keys)
        have = ", ".join(f"{key} {getattr(tower, key)}" for key in keys)
        raise UserError(
            f"{path} is not the model of {origin} ({part.kind.name}): it has {have}; give {flags}."
        )


def _equal(a: Any, b: Any, key: str) -> bool:
    return getattr(a, key) == getattr(b, key)


def fit_image(part: Part, class_tokens: int, size: int, key: int = 0) -> Fitted:
    """A vision tower with another number of class tokens and another image size.

    Args:
      part: of the checkpoint.
      class_tokens: M of the model.
      size: pixels of a side of its images.
      key: seed of the copies' differences.
    """
    assert isinstance(part.tower, ViT)
    params, notes, old = dict(part.params), [], part.tower.class_tokens
    table = params["position_embedding"]
    tokens, patches = table[:old], table[old:]
    grid, want = math.isqrt(len(patches)), size // part.tower.patch
    if grid * grid != len(patches):
        raise UserError(
            f"{len(patches)} positions of patches make no square; only squares are read."
        )
    if grid != want:
        patches = resize_grid(patches, grid, want)
        notes.append(f"positions of {grid} x {grid} patches resized to {want} x {want} (bicubic)")
    if old != class_tokens:
        rng = np.random.default_rng(key)
        tokens = copies(tokens, class_tokens, rng)
        params["class_embedding"] = copies(params["class_embedding"], class_tokens, rng)
        notes.append(_said(old, class_tokens))
    params["position_embedding"] = np.concatenate([tokens, patches])
    return Fitted(params, notes)


def fit_text(part: Part, tower: Bert, length: int, key: int = 0) -> Fitted:
    """A text tower with another number of class tokens and another length.

    Copies of a first token get positions of their own in front; those of a last token stand behind
    the text, at positions that the model has already.

    Args:
      part: of the checkpoint.
      tower: as configured.
      length: tokens of a text in the model.
      key: seed of the copies' differences.
    """
    assert isinstance(part.tower, Bert)
    params, notes = dict(part.params), []
    table, old, m = params["position_embedding"], part.tower.class_tokens, tower.class_tokens
    rng = np.random.default_rng(key)
    if tower.pool == "first" and old != m:
        table = np.concatenate([copies(table[:old], m, rng), table[old:]])
        notes.append(_said(old, m))
    elif tower.pool == "last" and old != m:
        notes.append(_said(old, m, "the last token"))
    rows = length + m - 1
    if len(table) > rows:
        notes.append(f"{len(table)} positions cut to {rows}")
        table = table[:rows]
    elif len(table) < rows:
        notes.append(f"{len(table)} positions extended to {rows} by copies of the last one")
        more = np.repeat(table[-1:], rows - len(table), axis=0)
        table = np.concatenate([table, more + _noise(more, table.std(), rng)])
    params["position_embedding"] = table
    return Fitted(params, notes)


def _said(old: int, new: int, what: str = "the class token") -> str:
    if new < old:
        return f"the first {new} of {old} class tokens kept"
    return (
        f"{what} copied to {new}, each with a little noise" if old else f"{new} class tokens drawn"
    )


def copies(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The first `count` rows; where there are fewer, copies of them in turn with a little noise.

    Args:
      rows: [old, W], at least one.
      count: new number.
      rng: of the noise, whose deviation is 2% of the rows'.

    Returns:
      [count, W].
    """
    if count <= len(rows):
        return rows[:count]
    more = rows[np.arange(count - len(rows)) % len(rows)]
    return np.concatenate([rows, more + _noise(more, rows.std(), rng)])


def _noise(rows: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, NOISE * float(deviation), rows.shape).astype(rows.dtype)


def resize_grid(rows: np.ndarray, old: int, new: int) -> np.ndarray:
    """Positions of a square of patches at another size, bicubic: [old^2, W] -> [new^2, W]."""
    planes = rows.reshape(old, old, -1).transpose(2, 0, 1)  # [W, old, old]
    resized = [
        np.asarray(Image.fromarray(plane).resize((new, new), Image.Resampling.BICUBIC))
        for plane in planes.astype(np.float32)
    ]
    return np.stack(resized, -1).reshape(new * new, -1)  # [new^2, W]


def compare_names(
    origin: str,
    fitted: Mapping[str, np.ndarray],
    wanted: Mapping[str, tuple[int, ...]],
    fresh: Iterable[str] = (),
) -> list[str]:
    """Makes sure that a tower is whole, and gives the parameters that start anew on purpose.

    Args:
      origin: the file, for messages.
      fitted: path -> array, from the checkpoint.
      wanted: path -> shape, of the model.
      fresh: patterns of paths that may be missing in the checkpoint.

    Raises:
      UserError: names what is missing, left over, or of another shape.
    """
    patterns = tuple(fresh)
    missing = sorted(set(wanted) - set(fitted))
    anew = [name for name in missing if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    lost = [name for name in missing if name not in anew]
    extra = sorted(set(fitted) - set(wanted))
    other = [
        f"{name} ({list(fitted[name].shape)} instead of {list(wanted[name])})"
        for name in sorted(set(fitted) & set(wanted))
        if fitted[name].shape != wanted[name]
    ]
    for what, found in (("lacks", lost), ("has too much", extra), ("has another shape of", other)):
        if found:
            rest = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise UserError(f"{origin} {what}: {', '.join(found[:5])}{rest}.")
    return anew


def with_tokens(tower: ViT | Bert, count: int) -> ViT | Bert:
    """The same tower with another number of class tokens."""
    return dataclasses.replace(tower, class_tokens=count)
