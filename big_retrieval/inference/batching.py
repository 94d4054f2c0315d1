"""How values share batches when a trained model encodes them: rows, and lengths of texts.

Every pair of rows and length is a program to compile. Texts are sorted by length, and their batches
are those that cost least: the tokens that are computed, padding included, and a price for every
batch and for every program. A batch has one row, four, or so many that what a layer makes of its
tokens stays in a CPU's caches: MiniLM then takes 245 microseconds of CPU time a token, against 350
to 390 with four to eight times as many. Everything here is a function of the values of one call, so
that the same call gives the same bits whatever was encoded before.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

TOKENS = 1024  # of a batch of texts on a CPU
IMAGES = 8  # of a batch on a CPU
BLOCK = 4096  # texts that are tokenised at a time, and share batches
MOST = 16  # programs of a call with many texts; those of the longest may come on top
FEW = (1, 4)  # rows of smaller batches
SEVERAL = 8  # texts up to which rows are `FEW` and, of a call, lengths are powers of two
BATCH = 30  # what a batch costs besides, in tokens
# What a program costs a call of so many texts or of more, in tokens. Compiling one takes as long as
# 3,400 tokens of MiniLM, but programs are few, so that calls of few texts find most of them there.
PRICES = {0: 500, 1025: 2000}
LEAST = 8  # tokens that a text is padded to


class Shape(NamedTuple):
    """Of a batch of texts.

    Attributes:
      rows: texts that it holds.
      length: tokens that they are padded to.
    """

    rows: int
    length: int


class BatchPlan(NamedTuple):
    """Batches of some texts.

    Attributes:
      cost: in tokens.
      shapes: how many there are of each shape, the longest first.
    """

    cost: float
    shapes: tuple[tuple[int, Shape], ...]


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

    def image_rows(self, images: int) -> int:
        """Rows of a batch of images, or of anything else that is no text, in a call of so many."""
        rows = self._rows(IMAGES, images)
        return next((few for few in rows if few >= images), rows[-1])

    def _rows(self, cached: int, values: int) -> list[int]:
        """The rows that batches may have, ascending.

        Args:
          cached: as many as a CPU's caches hold.
          values: of the call; other devices have batches of few rows where these hold all values.
        """
        full = max(1, min(self.most, cached)) if self.cpu else self.most
        rows = [few for few in FEW if few < full] + [full]
        if not self.cpu:
            rows = [next((few for few in rows if few >= values), full)]
        return sorted({self.groups * -(-few // self.groups) for few in rows})

    def shapes(self, counts: np.ndarray, longest: int, known: frozenset[Shape]) -> list[Shape]:
        """The batches of texts, those of the longest texts first.

        Args:
          counts: tokens of the texts, int [n], n at least 1.
          longest: the longest that a text can be.
          known: shapes of other texts of the call, whose programs cost nothing more.
        """
        fine = self.cpu and len(counts) > SEVERAL
        grid = steps(longest, 4 if fine else 1)
        price = max(x for texts, x in PRICES.items() if texts <= len(counts)) if self.cpu else 1
        held = any(shape.length >= counts.max() for shape in known)
        limit = max(MOST, len(known) + (0 if held else 1))
        while True:
            found = self._cheapest(counts, grid, known, price).shapes
            if len(known.union(shape for _, shape in found)) <= limit:
                return [shape for times, shape in found for _ in range(times)]
            price = 2 * price

    def _cheapest(
        self, counts: np.ndarray, grid: list[int], known: frozenset[Shape], price: int
    ) -> BatchPlan:
        """The batches that cost least, of lengths of a grid whose last one holds every text."""
        fit = np.searchsorted(np.sort(counts), grid, side="right").tolist()  # texts that each holds
        best = [BatchPlan(0, ())]  # of the texts that a length holds, behind those of length 0
        for place, length in enumerate(grid):
            ways = [best[-1]] if fit[place] == ([0, *fit])[place] else []
            for shorter, done in zip(best, [0, *fit], strict=False):
                if done < fit[place]:
                    rows = self._rows_of(length, fit[place] - done, len(counts))
                    own = _of_length(length, rows, fit[place] - done, known, price)
                    ways.append(BatchPlan(own.cost + shorter.cost, own.shapes + shorter.shapes))
            best.append(min(ways))
        return best[-1]

    def _rows_of(self, length: int, texts: int, call: int) -> list[int]:
        """The rows that batches of some texts of a length, in a call of so many, may have."""
        # So few texts need no larger batches, which would be further programs for the demo.
        cached = min(TOKENS // length, FEW[-1] if texts <= SEVERAL else TOKENS)
        return self._rows(cached, call)


def _of_length(
    length: int, rows: list[int], texts: int, known: frozenset[Shape], price: int
) -> BatchPlan:
    """The batches of one length that cost least: large ones, and small ones for the rest."""
    ways = []
    for large in rows:
        for small in rows[: rows.index(large) + 1]:
            whole, rest = divmod(texts, large) if small < large else (0, texts)
            parts = ((whole, Shape(large, length)), (-(-rest // small), Shape(small, length)))
            shapes = tuple((times, shape) for times, shape in parts if times)
            cost = sum(
                times * (shape.rows * length + BATCH) + (0 if shape in known else price)
                for times, shape in shapes
            )
            ways.append(BatchPlan(cost, shapes))
    return min(ways)


def steps(longest: int, octave: int) -> list[int]:
    """Lengths up to `longest`, it included: so many from one power of two to the next.

    Steps are of four tokens at least.
    """
    found, base = [], LEAST
    while base < longest:
        found += range(base, min(2 * base, longest), max(4, base // octave))
        base *= 2
    return [*found, longest]


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
    known: frozenset[Shape] = frozenset()
    for block in blocks:
        valid = np.flatnonzero(block["valid"])
        if not len(valid):
            continue
        counts = np.full(len(valid), field.length)
        if cut:
            counts = np.maximum(1, field.lengths(block[name]))[valid]
        shapes = batching.shapes(counts, field.length, known)
        known |= frozenset(shapes)
        left = valid[np.argsort(-counts, kind="stable")]
        for rows, length in shapes:
            if not len(left):  # as shorter texts have filled up batches of longer ones
                break
            chosen, left = left[:rows], left[rows:]
            index = np.concatenate([chosen, np.repeat(chosen[:1], rows - len(chosen))])
            arrays = jax.tree.map(lambda x: x[index], dict(block[name]))  # noqa: B023
            yield {
                name: field.trimmed(arrays, length) if cut else arrays,
                "record": block["record"][index],
                "valid": np.arange(rows) < len(chosen),
            }
