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

# Noise of copied class tokens, as a share of the table's deviation. Without it, copies stay equal.
NOISE = 0.02


@functools.singledispatch
def fit_tower(tower: Tower, saved: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    """Fits the parameters of a checkpoint's tower to a configured tower of the same type.

    Vision transformers get another number of class tokens and another image size in pixels, text
    transformers another number of class tokens and another length in tokens. Copies of a first
    token get their own positions. Copies of a last token share its position and differ by a small
    vector.

    Args:
      fields: fields that the tower reads.
      seed: seed of the noise that makes copied class tokens differ.
    """
    return Fitted(saved.params, [])


@fit_tower.register
def _(tower: ViT, saved: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    params, notes = dict(saved.params), []
    old, new = saved.tower.class_tokens, tower.class_tokens
    table = params["position_embedding"]
    tokens, patches = table[:old], table[old:]
    grid, new_grid = math.isqrt(len(patches)), max(x.size for x in fields) // saved.tower.patch
    if grid * grid != len(patches):
        raise UserError(
            f"The {len(patches)} positions of patches are not a square. Only square images can be "
            "imported."
        )
    if grid != new_grid:
        patches = resize_grid(patches, grid, new_grid)
        notes.append(
            f"positions of {grid} x {grid} patches resized to {new_grid} x {new_grid} (bicubic)"
        )
    if old != new:
        rng = np.random.default_rng(seed)
        tokens = copies(tokens, new, rng)
        params["class_embedding"] = copies(params["class_embedding"], new, rng)
        notes += _token_notes(old, tower)
    params["position_embedding"] = np.concatenate([tokens, patches])
    return Fitted(params, notes)


@fit_tower.register
def _(tower: Bert, saved: CheckpointTower, fields: Sequence[Any], seed: int = 0) -> Fitted:
    params, notes = dict(saved.params), []
    table, old, new = params["position_embedding"], saved.tower.class_tokens, tower.class_tokens
    rng = np.random.default_rng(seed)
    if tower.pool == "first" and old != new:
        table = np.concatenate([copies(table[:old], new, rng), table[old:]])
        notes += _token_notes(old, tower)
    elif tower.pool == "last" and new > 1 and len(params.get("end_embedding", ())) != new:
        ends = params.get("end_embedding")
        if ends is None:
            word_table = params["token_embedding"]
            ends = _noise(np.zeros((new, word_table.shape[1]), np.float32), word_table.std(), rng)
        params["end_embedding"] = copies(ends, new, rng)
        notes += _token_notes(old, tower, "the last token")
    rows = max(field.length for field in fields) + (0 if tower.pool == "last" else new - 1)
    if len(table) > rows:
        notes.append(f"{len(table)} positions cut to {rows}")
        table = table[:rows]
    elif len(table) < rows:
        notes.append(f"{len(table)} positions extended to {rows} by copies of the last one")
        more = np.repeat(table[-1:], rows - len(table), axis=0)
        table = np.concatenate([table, more + _noise(more, table.std(), rng)])
    params["position_embedding"] = table
    return Fitted(params, notes)


def first_layers(saved: CheckpointTower, tower: Any) -> CheckpointTower:
    """Returns a checkpoint's tower with as many of its first layers as a configured tower has.

    A tower with no more layers, or with layers that differ, is returned unchanged.
    """
    cut = saved.tower.at_depth(tower.depth)
    if cut is None or saved.tower.depth <= tower.depth:
        return saved
    beyond = tuple(f"layers_{i}/" for i in range(tower.depth, saved.tower.depth))
    params = {path: x for path, x in saved.params.items() if not path.startswith(beyond)}
    return dataclasses.replace(saved, tower=cut, params=params)


def _token_notes(old: int, tower: Any, token: str = "the class token") -> list[str]:
    """Returns messages about another number of class tokens."""
    new = tower.class_tokens
    if new < old:
        return [f"the first {new} of {old} class tokens kept"]
    notes = [
        f"{token} copied to {new}, with a little noise" if old else f"{new} class tokens drawn"
    ]
    if new > old and not tower.tokens_as_one:
        notes.append(
            f"{new} class tokens weigh more in attention than {old}, so that the first step only "
            "approximates the model; with tokens_as_one=True it is exact"
        )
    return notes


def copies(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the first `count` rows [old, W]; missing rows are copies in turn with 2% noise."""
    if count <= len(rows):
        return rows[:count]
    more = rows[np.arange(count - len(rows)) % len(rows)]
    return np.concatenate([rows, more + _noise(more, rows.std(), rng)])


def _noise(rows: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, NOISE * float(deviation), rows.shape).astype(rows.dtype)


def resize_grid(rows: np.ndarray, old: int, new: int) -> np.ndarray:
    """Resizes positions of square patches, bicubic: [old^2, W] -> [new^2, W]."""
    planes = rows.reshape(old, old, -1).transpose(2, 0, 1)  # [W, old, old]
    resized = [
        np.asarray(Image.fromarray(plane).resize((new, new), Image.Resampling.BICUBIC))
        for plane in planes.astype(np.float32)
    ]
    return np.stack(resized, -1).reshape(new * new, -1)  # [new^2, W]
