"""Parameters of generated scenes: the objects in each record of a split."""

import functools
import hashlib

import numpy as np

from big_retrieval.data.synthetic import shapes
from big_retrieval.errors import UserError

SHAPES = tuple(shapes.SHAPES)
COLOURS = tuple(shapes.COLOURS)
COUNTS = {"train": 20_000, "validation": 500, "test": 1_000, "colours": 400, "shapes": 400}
# zero-shot split -> column, names of its classes
LABELS = {"colours": ("colour", COLOURS), "shapes": ("shape", SHAPES)}

KINDS = len(SHAPES) * len(COLOURS)  # kind = shape * len(COLOURS) + colour
_BLOCK = 1024  # records that are drawn at a time
_SALT = "scenes-8"  # chosen so that every class has several test pairs


@functools.cache
def pairs_of(split: str) -> np.ndarray:
    """Returns the pairs of kinds of one part: "train", "validation" or "test".

    Returns:
      int64 [pairs, 2], kind = shape * 8 + colour, first <= second; read-only.
    """
    split_pairs = []
    for first in range(KINDS):
        for second in range(first, KINDS):
            digest = hashlib.sha256(f"{_SALT}:{first}:{second}".encode()).digest()
            share = int.from_bytes(digest[:8], "big") / 2**64
            home = "test" if share < 0.10 else "validation" if share < 0.13 else "train"
            if home == split:
                split_pairs.append((first, second))
    pairs = np.array(split_pairs)  # [pairs, 2]
    pairs.flags.writeable = False
    return pairs


def _unique_scenes(split: str) -> np.ndarray:
    """Returns the canonical scenes of a part: [scenes, 5], kinds (2), sizes (2) and relation."""
    scenes = set()
    for first, second in pairs_of(split).tolist():
        for a, b in ((first, second), (second, first)):
            for sizes in range(4):
                scenes.update((a, b, sizes // 2, sizes % 2, relation) for relation in (0, 2))
    return np.array(sorted(scenes))  # [scenes, 5]


def _label_pairs(label: str) -> list[np.ndarray]:
    """Returns for each class the test pairs that share it, else training pairs: [pairs, 2] each."""

    def value(kinds: np.ndarray) -> np.ndarray:
        return kinds % len(COLOURS) if label == "colour" else kinds // len(COLOURS)

    groups = []
    for class_index in range(len(COLOURS if label == "colour" else SHAPES)):
        for split in ("test", "train"):
            pairs = pairs_of(split)
            pairs = pairs[(value(pairs) == class_index).all(1)]  # [pairs, 2]
            if len(pairs):
                groups.append(pairs)
                break
    return groups


def stream_of(split: str) -> int:
    """Returns the index of a split's random numbers; it must never change."""
    return list(COUNTS).index(split)


def _uniform(split: str, seed: int, count: int, width: int) -> np.ndarray:
    """Draws [0, 1) by blocks, so that a row depends on its index alone: [count, width]."""
    key = np.array([seed, stream_of(split)], np.uint64)
    blocks = []
    for block in range(-(-count // _BLOCK)):
        counter = np.array([0, 0, 0, block], np.uint64)
        rng = np.random.Generator(np.random.Philox(counter=counter, key=key))
        blocks.append(rng.random((_BLOCK, width)))
    return np.concatenate(blocks)[:count]  # [count, width]


def draw_parameters(split: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns kinds, sizes and relation of records [count, 5], and uniform draws [count, 14].

    Draw 0 selects the background, 1-4 the jitter, 5-12 the order of templates, and 13 the point of
    view of the first caption.
    """
    draws = _uniform(split, seed, count, 19)  # [count, 19]
    object_draws, other_draws = draws[:, :5], draws[:, 5:]
    if split in ("test", "validation"):
        scenes = _unique_scenes(split)  # [scenes, 5]
        if count > len(scenes):
            raise UserError(
                f"scenes: count {count} is too much; {split} has {len(scenes)} unique scenes."
            )
        key = np.array([seed, 16 + stream_of(split)], np.uint64)
        order = np.random.Generator(np.random.Philox(key=key)).permutation(len(scenes))
        selected = scenes[order[:count]]  # [count, 5]
        swap = object_draws[:, 0] < 0.5  # half of them start from the right or lower object
        swapped = selected[:, [1, 0, 3, 2, 4]] + np.array([0, 0, 0, 0, 1])
        return np.where(swap[:, None], swapped, selected), other_draws
    if split == "train":
        pairs = pairs_of("train")
        kinds = pairs[(object_draws[:, 0] * len(pairs)).astype(np.int64)]  # [count, 2]
    else:
        groups = _label_pairs(LABELS[split][0])
        kinds = np.stack(
            [
                groups[i % len(groups)][int(object_draws[i, 0] * len(groups[i % len(groups)]))]
                for i in range(count)
            ]
        )  # [count, 2]
    swap = object_draws[:, 1] < 0.5
    kinds = np.where(swap[:, None], kinds[:, ::-1], kinds)
    sizes_and_relation = (object_draws[:, 2:5] * np.array([2, 2, 4])).astype(np.int64)  # [count, 3]
    scenes = np.concatenate([kinds, sizes_and_relation], axis=1)  # [count, 5]
    return scenes, other_draws  # [count, 5], [count, 14]
