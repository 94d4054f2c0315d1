"""Fits a checkpoint's tower to a config: resizes positions, adds class tokens.

Intended changes are returned as notes; everything else that does not fit is an error.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from big_retrieval.config import Bert, Tower, ViT
from big_retrieval.config.towers import Fitted
from big_retrieval.errors import UserError
from big_retrieval.interop.source import CheckpointTower

NOISE = 0.02  # of copied class tokens, as a share of the table's deviation: equal ones stay equal


@functools.singledispatch
def fit_tower(tower: Tower, part: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    """Fits the parameters of a checkpoint's tower to a configured tower of the same type.

    Args:
      fields: fields that the tower reads.
      seed: seed of the noise that makes copied class tokens differ.
    """
    return Fitted(part.params, [])


@fit_tower.register
def _(tower: ViT, part: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    return fit_image(part, tower, max(field.size for field in fields), seed)


@fit_tower.register
def _(tower: Bert, part: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    return fit_text(part, tower, max(field.length for field in fields), seed)


def fit_image(part: CheckpointTower, tower: ViT, size: int, key: int = 0) -> Fitted:
    """Fits a vision tower to another number of class tokens and another image size in pixels."""
    params, notes, old = dict(part.params), [], part.tower.class_tokens
    class_tokens = tower.class_tokens
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
        notes += _diluted(old, class_tokens, tower.tokens_as_one)
    params["position_embedding"] = np.concatenate([tokens, patches])
    return Fitted(params, notes)


def fit_text(part: CheckpointTower, tower: Bert, length: int, key: int = 0) -> Fitted:
    """Fits a text tower to another number of class tokens and another length in tokens.

    Copies of a first token get their own positions. Copies of a last token share its position and
    differ by a small vector.
    """
    params, notes = dict(part.params), []
    table, old, m = params["position_embedding"], part.tower.class_tokens, tower.class_tokens
    rng = np.random.default_rng(key)
    if tower.pool == "first" and old != m:
        table = np.concatenate([copies(table[:old], m, rng), table[old:]])
        notes.append(_said(old, m))
        notes += _diluted(old, m, tower.tokens_as_one)
    elif tower.pool == "last" and m > 1:
        words = params["token_embedding"]
        params["end_embedding"] = _noise(
            np.zeros((m, words.shape[1]), np.float32), words.std(), rng
        )
        notes.append(_said(old, m, "the last token"))
        notes += _diluted(old, m, tower.tokens_as_one)
    rows = length + (0 if tower.pool == "last" else m - 1)
    if len(table) > rows:
        notes.append(f"{len(table)} positions cut to {rows}")
        table = table[:rows]
    elif len(table) < rows:
        notes.append(f"{len(table)} positions extended to {rows} by copies of the last one")
        more = np.repeat(table[-1:], rows - len(table), axis=0)
        table = np.concatenate([table, more + _noise(more, table.std(), rng)])
    params["position_embedding"] = table
    return Fitted(params, notes)


def first_layers(part: CheckpointTower, tower: Any) -> CheckpointTower:
    """Returns a checkpoint's tower with only its first layers, as many as a configured tower has.

    A tower with no more layers, or with layers that differ, is returned unchanged.
    """
    cut = part.tower.at_depth(tower.depth)
    if cut is None or part.tower.depth <= tower.depth:
        return part
    beyond = tuple(f"layers_{i}/" for i in range(tower.depth, part.tower.depth))
    params = {path: x for path, x in part.params.items() if not path.startswith(beyond)}
    return dataclasses.replace(part, tower=cut, params=params)


def _said(old: int, new: int, what: str = "the class token") -> str:
    if new < old:
        return f"the first {new} of {old} class tokens kept"
    return (
        f"{what} copied to {new}, each with a little noise" if old else f"{new} class tokens drawn"
    )


def _diluted(old: int, new: int, as_one: bool) -> list[str]:
    """Returns a note that copies change the model's output, unless they weigh as one."""
    if as_one or new <= old:
        return []
    return [
        f"{new} class tokens weigh more in attention than {old}: with tokens_as_one=True the "
        "first step is the model's, else only near it"
    ]


def copies(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the first `count` rows; missing rows are copies in turn with a little noise.

    Args:
      rows: [old, W], at least one.
      rng: source of the noise, whose deviation is 2% of the deviation of the rows.
    """
    if count <= len(rows):
        return rows[:count]
    more = rows[np.arange(count - len(rows)) % len(rows)]
    return np.concatenate([rows, more + _noise(more, rows.std(), rng)])


def _noise(rows: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, NOISE * float(deviation), rows.shape).astype(rows.dtype)


def resize_grid(rows: np.ndarray, old: int, new: int) -> np.ndarray:
    """Resizes positions of a square of patches, bicubic: [old^2, W] -> [new^2, W]."""
    planes = rows.reshape(old, old, -1).transpose(2, 0, 1)  # [W, old, old]
    resized = [
        np.asarray(Image.fromarray(plane).resize((new, new), Image.Resampling.BICUBIC))
        for plane in planes.astype(np.float32)
    ]
    return np.stack(resized, -1).reshape(new * new, -1)  # [new^2, W]
