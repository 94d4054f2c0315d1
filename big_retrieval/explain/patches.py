"""Which patches of an image a word comes from, and what words some of its patches have.

VDR, section 6.2: the tower sees the whole image; the head then pools over the chosen patches of its
output alone.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from big_retrieval.data.at_hand import read_image
from big_retrieval.data.images.transforms import evaluation_view
from big_retrieval.errors import UserError
from big_retrieval.explain.words import check_field, words_of
from big_retrieval.models.lexical import LexicalHead
from big_retrieval.models.towers import DTYPES, variables
from big_retrieval.sparse import gate, listing
from big_retrieval.sparse.listing import Listed

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

_RECTANGLE = re.compile(r"(\d+):(\d+),(\d+):(\d+)")


@dataclass(frozen=True)
class Patches:
    """The patches of an image behind the tower, in R rows and as many columns, row by row.

    Attributes:
      picture: what the model saw, uint8 [S, S, 3].
      side: R.
      words: of the V terms.
      hidden: outputs of the tower, [R * R, D].
      head: the lexical head.
      params: its parameters.
      top_k: terms that the gate leaves; None: all.
    """

    picture: np.ndarray
    side: int
    words: tuple[str, ...]
    hidden: np.ndarray
    head: LexicalHead
    params: Any
    top_k: int | None

    def dense(self, groups: np.ndarray) -> np.ndarray:
        """V(x) of some patch groups, float32 [G, V], in front of the gate.

        Args:
          groups: bool [G, R, R], which patches take part.

        Raises:
          UserError: a group is empty, or of another shape.
        """
        size = self.side
        if groups.ndim != 3 or groups.shape[1:] != (size, size):
            raise UserError(
                f"patch groups are {groups.shape}, but the image has {size} x {size} patches: give "
                f"[groups, {size}, {size}]."
            )
        if not groups.any(axis=(1, 2)).all():
            raise UserError("a group has no patch: choose at least one of the image.")
        masks = groups.reshape(len(groups), -1)  # [G, R * R]
        rows = [self._pooled(self.head, self.hidden[None], mask[None]) for mask in masks]
        return np.concatenate(rows)

    def strongest(self, chosen: np.ndarray, count: int | None = 20) -> Listed:
        """(word, value) of the strongest terms of E(x) of some patches, largest first.

        Args:
          chosen: bool [R, R], as `rectangle` gives it.
          count: how many at most; None: all that the gate leaves.

        Raises:
          UserError: as `dense`.
        """
        row = jnp.asarray(self.dense(chosen[None]))
        if self.top_k is not None:
            row = gate.to_dense(gate.sparsify(row, self.top_k), len(self.words))
        return listing.strongest(np.asarray(row), self.words, count)

    def map(self, word: str) -> np.ndarray:
        """The value of a word at each patch, float32 [R, R].

        In the unit of the whole image's representation: with max pooling the largest is the
        image's value of this term.

        Raises:
          UserError: no term is called so.
        """
        check_word(word, self.words)
        return self.values[:, self.words.index(word)].reshape(self.side, self.side)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Every term at each patch, in the unit of the whole image's V(x), float32 [R * R, V]."""
        plain = self.head.clone(spec=dataclasses.replace(self.head.spec, normalise=False))
        each = self._pooled(plain, self.hidden[:, None])  # [R * R, V]
        if not self.head.spec.normalise:
            return each
        norm = np.linalg.norm(self._pooled(plain, self.hidden[None]))
        return each / max(float(norm), 1e-12)

    def _pooled(
        self, head: LexicalHead, hidden: np.ndarray, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """[n, L, D] through the head: float32 [n, V]."""
        return np.asarray(head.apply({"params": self.params}, hidden, mask), np.float32)


def look(model: "TrainedModel", image: Any, field: str = "image") -> Patches:
    """The patches of an image behind the model's tower.

    Args:
      model: with a lexical head for images.
      image: a file, a PIL image or a uint8 array [H, W, 3].
      field: which image field it is.

    Raises:
      UserError: no such field, it has no lexical head, or the image cannot be read.
    """
    c = model.config
    check_field(c, field, "image")
    part: Any = c.fields[field]
    owner = part.shares_head or field
    config: Any = c.fields[owner].head
    place = str(image) if isinstance(image, str | Path) else "an image"
    view = part.evaluation_view()
    picture = evaluation_view(read_image(image), part.size, place=place, **view)  # [S, S, 3]
    hidden = model.features([image], field)[0]  # [R * R, D]
    # Padding is of texts; images have masks here alone, which have to count.
    unmasked = replace(config, pool_padding=False)
    head = unmasked.build(model.terms(field), dtype=DTYPES[c.dtype], parent=None)
    return Patches(
        picture,
        round(len(hidden) ** 0.5),
        words_of(model, field),
        hidden,
        head,
        variables(model.weights)["params"][f"{owner}_head"],
        part.head.top_k,
    )


def check_word(word: str, words: Sequence[str]) -> None:
    """Raises a UserError unless a term is called so.

    Args:
      word: of a user.
      words: of all terms.
    """
    if word not in words:
        raise UserError(
            f"no term is called {word!r}: the model's vocabulary has word pieces, which "
            "big-retrieval explain lists."
        )


def rectangle(text: str, side: int) -> np.ndarray:
    """The patches of "r0:r1,c0:c1": rows r0 to r1 - 1 and columns c0 to c1 - 1, from 0.

    Args:
      text: the rectangle.
      side: rows, and columns, of patches.

    Returns:
      bool [side, side].

    Raises:
      UserError: it reads otherwise, is empty, or leaves the image.
    """
    match = _RECTANGLE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UserError(f"the patches are {text!r}; write r0:r1,c0:c1, such as 0:3,2:5.")
    top, bottom, left, right = map(int, match.groups())
    if not (top < bottom <= side and left < right <= side):
        raise UserError(
            f"the patches {text!r} are none of the image's: it has {side} rows and {side} columns, "
            "counted from 0, and the second number of each pair must be larger than the first."
        )
    out = np.zeros((side, side), bool)
    out[top:bottom, left:right] = True
    return out


def patch_list(places: Iterable[tuple[int, int]], side: int) -> np.ndarray:
    """Single patches (row, column), from 0, as bool [side, side].

    Raises:
      UserError: one is outside of the image.
    """
    out = np.zeros((side, side), bool)
    for row, column in places:
        if not (0 <= row < side and 0 <= column < side):
            raise UserError(
                f"there is no patch ({row}, {column}): the image has {side} rows and columns, "
                "counted from 0."
            )
        out[row, column] = True
    return out
