"""How values share batches when a trained model encodes them: rows, and lengths of texts.

Every pair of rows and length is a program to compile. A batch has few enough tokens that what a
layer makes of them stays in a CPU's caches: MiniLM then takes 245 microseconds of CPU time a token,
against 350 to 390 with four to eight times as many. Everything here is a function of the values of
one call, so that the same call gives the same bits whatever was encoded before.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

TOKENS = 1024  # of a batch of texts on a CPU
IMAGES = 8  # of a batch on a CPU
BLOCK = 4096  # texts that are tokenised at a time, and share batches
MOST = 12  # lengths of a call with many texts; that of the longest may come on top
FEW = (1, 8)  # rows of a call's only batch that are worth a program of their own
# Tokens of padding that a program must save: MiniLM computes them in half of the 1 s that a CPU
# takes to compile it, but a program serves later calls, too.
PRICE = 2048
LEAST = 8  # tokens that a text is padded to


@dataclass(frozen=True)
class Batching:
    """What a call's batches look like.

    Attributes:
      most: rows of a batch at most.
      groups: the mesh's row groups, which divide the rows of every batch.
      cpu: whether the devices are CPUs; others compute batches of `most` rows of any length best,
        and compile so long that lengths are powers of two.
    """

    most: int
    groups: int
    cpu: bool

    @classmethod
    def of(cls, mesh: Mesh, most: int) -> "Batching":
        """The batching of a mesh."""
        groups = mesh.shape["data"] * mesh.shape["fsdp"]
        return cls(most, groups, mesh.devices.flat[0].platform == "cpu")

    def text_rows(self, length: int, texts: int) -> int:
        """Rows of a batch of texts.

        Args:
          length: that they are padded to.
          texts: of the call.
        """
        return self._rows(TOKENS // length, texts)

    def image_rows(self, images: int) -> int:
        """Rows of a batch of images, or of anything else that is no text, in a call of so many."""
        return self._rows(IMAGES, images)

    def _rows(self, cached: int, values: int) -> int:
        full = min(self.most, cached) if self.cpu else self.most
        few = [rows for rows in FEW if values <= rows < full]
        rows = few[0] if few else full
        return self.groups * max(1, -(-rows // self.groups))

    def lengths(self, counts: np.ndarray, longest: int, known: frozenset[int]) -> tuple[int, ...]:
        """The lengths that texts are padded to, ascending: the cheapest, compilation included.

        Args:
          counts: tokens of the texts, int [n], n at least 1.
          longest: the longest that a text can be.
          known: lengths that were chosen for other texts of the call, which cost nothing more.
        """
        fine = self.cpu and len(counts) > FEW[-1]
        grid = steps(longest, 4 if fine else 1)
        price = PRICE if self.cpu else 1
        if len(known) >= MOST:
            return cheapest(counts, sorted(known | {longest}), known, 0)
        while len(known | set(found := cheapest(counts, grid, known, price))) > MOST:
            price = 2 * price + 1
        return found


def steps(longest: int, octave: int) -> list[int]:
    """Lengths up to `longest`, it included: so many from one power of two to the next.

    Steps are of four tokens at least.
    """
    found, base = [], LEAST
    while base < longest:
        found += range(base, min(2 * base, longest), max(4, base // octave))
        base *= 2
    return [*found, longest]


def cheapest(
    counts: np.ndarray, grid: list[int], known: frozenset[int], price: float
) -> tuple[int, ...]:
    """Those lengths of a grid that cost least: tokens with padding, and `price` for each new one.

    Args:
      counts: tokens of the texts, int [n].
      grid: lengths to choose of, ascending; the last holds every text.
      known: of these, what costs no price.
      price: in tokens.
    """
    fit = np.searchsorted(np.sort(counts), grid, side="right").tolist()  # texts that each can hold
    best: list[tuple[float, tuple[int, ...]]] = []  # of the texts that a length can hold, with it
    for place, length in enumerate(grid):
        before = [(0.0, (), 0), *((*best[i], fit[i]) for i in range(place))]
        own = 0 if length in known else price
        best.append(
            min(
                (cost + own + (fit[place] - done) * length, (*chosen, length))
                for cost, chosen, done in before
            )
        )
    return min(found for found, held in zip(best, fit, strict=True) if held == len(counts))[1]


def regrouped(
    blocks: Iterable[Mapping[str, Any]], name: str, field: Any, batching: Batching, cut: bool
) -> Iterator[dict[str, Any]]:
    """Batches of texts of like length, the longest of a block first.

    Args:
      blocks: what `data.pipeline.eval_batches` yields, of any number of rows.
      name: of the field.
      field: its configuration, that of a text field.
      batching: says how large batches are.
      cut: whether padding may be cut off.

    Yields:
      As `blocks`, in another order and of other sizes; rows that fill a batch are not valid.
    """
    known: frozenset[int] = frozenset()
    for block in blocks:
        valid = np.flatnonzero(block["valid"])
        if not len(valid):
            continue
        counts = np.full(len(valid), field.length)
        if cut:
            counts = np.maximum(1, field.lengths(block[name]))[valid]
            lengths = batching.lengths(counts, field.length, known)
        else:
            lengths = (field.length,)
        known |= frozenset(lengths)
        order, start = np.argsort(-counts, kind="stable"), 0
        while start < len(order):
            length = min(x for x in lengths if x >= counts[order[start]])
            rows = batching.text_rows(length, len(valid))
            chosen = valid[order[start : start + rows]]
            start += rows
            index = np.concatenate([chosen, np.repeat(chosen[:1], rows - len(chosen))])
            arrays = jax.tree.map(lambda x: x[index], dict(block[name]))  # noqa: B023
            yield {
                name: field.trimmed(arrays, length) if cut else arrays,
                "record": block["record"][index],
                "valid": np.arange(rows) < len(chosen),
            }
