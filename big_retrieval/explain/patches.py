"""Patches of an image: the value of a word at each patch, and the words of a group of patches.

VDR, section 6.2: the tower sees the whole image; the head then pools only the selected patches.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from big_retrieval.data.build import make_readers
from big_retrieval.data.in_memory import Values
from big_retrieval.errors import UserError
from big_retrieval.explain.words import choose_field, words_of
from big_retrieval.models.lexical import LexicalHead
from big_retrieval.models.towers import DTYPES, variables
from big_retrieval.sparse import gate, listing
from big_retrieval.sparse.listing import Listed

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

_RECTANGLE = re.compile(r"(\d+):(\d+),(\d+):(\d+)")


@dataclass(frozen=True)
class Patches:
    """Patches of an image after the tower, in R rows and R columns, row by row."""

    picture: np.ndarray  # input of the model, uint8 [S, S, 3]
    side: int  # R
    words: tuple[str, ...]  # names of the V terms
    hidden: np.ndarray  # outputs of the tower, [R * R, D]
    head: LexicalHead
    params: Any  # parameters of the head
    top_k: int | None  # number of terms that the gate keeps; None for all

    def dense(self, groups: np.ndarray) -> np.ndarray:
        """Computes V(x) of groups of patches, float32 [G, V], before the gate.

        Args:
          groups: True for patches of the group, bool [G, R, R]; no group is empty.
        """
        size = self.side
        if groups.ndim != 3 or groups.shape[1:] != (size, size):
            raise UserError(
                f"Patch groups have the shape {groups.shape}. Use [groups, {size}, {size}]: the "
                f"image has {size} x {size} patches."
            )
        if not groups.any(axis=(1, 2)).all():
            raise UserError("A patch group is empty. Select at least one patch.")
        masks = groups.reshape(len(groups), -1)  # [G, R * R]
        rows = [self._pooled(self.head, self.hidden[None], mask[None]) for mask in masks]
        return np.concatenate(rows)

    def strongest(self, mask: np.ndarray, count: int | None = 20) -> Listed:
        """Returns (word, value) of the strongest terms of E(x) of patches, largest first.

        Args:
          mask: True for these patches, bool [R, R], such as from `rectangle`.
          count: maximum number of terms; None for all that the gate keeps.
        """
        row = jnp.asarray(self.dense(mask[None]))
        if self.top_k is not None:
            row = gate.to_dense(gate.sparsify(row, self.top_k), len(self.words))
        return listing.strongest(np.asarray(row), self.words, count)

    def map(self, word: str) -> np.ndarray:
        """Returns the value of a word at each patch, float32 [R, R].

        With max pooling, the largest value is the value of this term for the whole image.
        """
        if word not in self.words:
            raise UserError(f"No term {word!r}. `big-retrieval explain` lists the terms.")
        return self.values[:, self.words.index(word)].reshape(self.side, self.side)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Values of all terms at each patch, float32 [R * R, V], divided by the image's norm."""
        plain = self.head.clone(spec=dataclasses.replace(self.head.spec, normalise=False))
        values = self._pooled(plain, self.hidden[:, None])  # [R * R, V]
        if not self.head.spec.normalise:
            return values
        norm = np.linalg.norm(self._pooled(plain, self.hidden[None]))
        return values / max(float(norm), 1e-12)

    def _pooled(
        self, head: LexicalHead, hidden: np.ndarray, mask: np.ndarray | None = None
    ) -> np.ndarray:
        return np.asarray(head.apply({"params": self.params}, hidden, mask), np.float32)


def look(model: "TrainedModel", image: Any, field: str = "image") -> Patches:
    """Encodes an image up to the output of the tower.

    Args:
      image: a path, a PIL image or a uint8 array [H, W, 3].
      field: an image field with a lexical head.
    """
    c = model.config
    choose_field(c, field, "image")
    field_config: Any = c.fields[field]
    owner = field_config.shares_head or field
    config: Any = c.fields[owner].head
    reader = make_readers(c, model.tokenizer)[field]
    picture = reader.value(Values([image], field_config), 0, 0)  # [S, S, 3]
    hidden = model.features([image], field)[0]  # [R * R, D]
    # With pool_padding, the head would ignore the masks that select patches.
    masked = replace(config, pool_padding=False)
    head = masked.build(model.terms(field), dtype=DTYPES[c.dtype], parent=None)
    return Patches(
        picture,
        round(len(hidden) ** 0.5),
        words_of(model, field),
        hidden,
        head,
        variables(model.weights)["params"][f"{owner}_head"],
        field_config.head.top_k,
    )


def rectangle(text: str, side: int) -> np.ndarray:
    """Parses "r0:r1,c0:c1" to a mask bool [side, side], True for rows r0 to r1 - 1, from 0.

    Args:
      side: number of rows and of columns of patches.
    """
    match = _RECTANGLE.fullmatch(text.replace(" ", ""))
    top, bottom, left, right = map(int, match.groups()) if match else (0, 0, 0, 0)
    if not (top < bottom <= side and left < right <= side):
        raise UserError(
            f"Patches {text!r} are not a rectangle of the {side} x {side} patches. Use "
            "r0:r1,c0:c1 such as 0:3,2:5: from 0, with r0 < r1 and c0 < c1."
        )
    out = np.zeros((side, side), bool)
    out[top:bottom, left:right] = True
    return out


def patch_list(places: Iterable[tuple[int, int]], side: int) -> np.ndarray:
    """Converts patches (row, column), from 0, to a mask bool [side, side]."""
    out = np.zeros((side, side), bool)
    for row, column in places:
        if not (0 <= row < side and 0 <= column < side):
            raise UserError(f"No patch ({row}, {column}): rows and columns are 0 to {side - 1}.")
        out[row, column] = True
    return out
