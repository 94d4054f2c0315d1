"""Batches of values for encoding by a trained model: number of rows, and length of texts.

Every combination of rows and length needs a compiled program. Texts are sorted by length, and
their batches minimize a cost: the number of tokens with padding, plus a price per batch and per
program. On a CPU, a batch has 1 row, 4 rows, or as many rows as keep the outputs of a layer in the
caches. MiniLM then takes 245 microseconds of CPU time per token, and 350 to 390 with four to eight
times more rows. The batches depend only on the values of one call: repeating it gives the same
bits.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

TOKENS = 1024  # per batch of texts on a CPU
SIDE = 224  # pixels
IMAGES = 8  # images of SIDE x SIDE pixels per batch on a CPU; more if they are smaller
BLOCK = 4096  # texts that are tokenized together and share batches
MAX_PROGRAMS = 16  # per call, plus one for the longest texts
FEW = (1, 4)  # rows of smaller batches
SEVERAL = 8  # up to this number of texts, rows are `FEW` and lengths are powers of two
BATCH = 30  # additional cost of a batch, in tokens
# Cost of a program, in tokens, by the minimum number of texts per call. Compiling a program takes
# as long as 3,400 tokens of MiniLM, but calls with few texts reuse most programs of earlier calls.
PRICES = {0: 500, 1025: 2000}
MIN_LENGTH = 8  # minimum number of tokens of a text after padding


class Shape(NamedTuple):
    """Rows and length of a text batch."""

    rows: int  # number of texts
    length: int  # number of tokens per text, with padding


class BatchPlan(NamedTuple):
    """Batches for encoding texts."""

    cost: float  # in tokens
    shapes: tuple[tuple[int, Shape], ...]  # (number of batches, shape), the longest first


@dataclass(frozen=True)
class Batching:
    """Limits of the batches on a mesh."""

    max_rows: int  # of a batch
    groups: int  # row groups of the mesh; divides the rows of every batch
    # True on CPUs. Other devices are fastest with `max_rows` rows; because they compile slowly,
    # lengths are powers of two.
    cpu: bool

    @classmethod
    def for_mesh(cls, mesh: Mesh, max_rows: int) -> "Batching":
        """Returns the batching of a mesh."""
        groups = mesh.shape["data"] * mesh.shape["fsdp"]
        return cls(max_rows, groups, mesh.devices.flat[0].platform == "cpu")

    def image_rows(self, images: int, side: int = SIDE) -> int:
        """Returns the rows of a batch of images of `side` pixels, or of other values than texts."""
        rows = self._rows(IMAGES * max(1, (SIDE // side) ** 2), images)
        return next((few for few in rows if few >= images), rows[-1])

    def _rows(self, cached: int, values: int) -> list[int]:
        """Returns the possible numbers of rows of a batch for `values` values, ascending.

        `cached` rows fit into a CPU's caches. Other devices use few rows only for few values.
        """
        full = max(1, min(self.max_rows, cached)) if self.cpu else self.max_rows
        rows = [few for few in FEW if few < full] + [full]
        if not self.cpu:
            rows = [next((few for few in rows if few >= values), full)]
        return sorted({self.groups * -(-few // self.groups) for few in rows})

    def shapes(self, counts: np.ndarray, longest: int, compiled: frozenset[Shape]) -> list[Shape]:
        """Returns the shapes of text batches, the longest texts first.

        Args:
          counts: tokens per text, int [n], n at least 1.
          longest: maximum number of tokens of a text.
          compiled: shapes of earlier batches of the call, whose programs cost nothing.
        """
        fine = self.cpu and len(counts) > SEVERAL
        grid = steps(longest, 4 if fine else 1)
        price = max(x for texts, x in PRICES.items() if texts <= len(counts)) if self.cpu else 1
        fits_known = any(shape.length >= counts.max() for shape in compiled)
        limit = max(MAX_PROGRAMS, len(compiled) + (0 if fits_known else 1))
        while True:
            shapes = self._cheapest(counts, grid, compiled, price).shapes
            if len(compiled.union(shape for _, shape in shapes)) <= limit:
                return [shape for times, shape in shapes for _ in range(times)]
            price = 2 * price

    def _cheapest(
        self, counts: np.ndarray, grid: list[int], compiled: frozenset[Shape], price: int
    ) -> BatchPlan:
        """Finds the cheapest batches with the lengths of a grid, whose last one fits every text."""
        # fit[i] is the number of texts that fit the first i lengths, and best[i] their batches.
        fit = [0, *np.searchsorted(np.sort(counts), grid, side="right").tolist()]
        best = [BatchPlan(0, ())]
        for index, length in enumerate(grid):
            total = fit[index + 1]
            plans = [best[-1]] if total == fit[index] else []
            for shorter, count in zip(best, fit, strict=False):
                if count < total:
                    # The demo encodes few texts per call: larger batches would need more programs.
                    few = FEW[-1] if total - count <= SEVERAL else TOKENS
                    rows = self._rows(min(TOKENS // length, few), len(counts))
                    plan = _plan_length(length, rows, total - count, compiled, price)
                    plans.append(BatchPlan(plan.cost + shorter.cost, plan.shapes + shorter.shapes))
            best.append(min(plans))
        return best[-1]


def _plan_length(
    length: int, rows: list[int], texts: int, compiled: frozenset[Shape], price: int
) -> BatchPlan:
    """Finds the cheapest batches of one length: large batches, and small ones for the remainder."""
    plans = []
    for large in rows:
        for small in rows[: rows.index(large) + 1]:
            full, remaining = divmod(texts, large) if small < large else (0, texts)
            parts = ((full, Shape(large, length)), (-(-remaining // small), Shape(small, length)))
            shapes = tuple((times, shape) for times, shape in parts if times)
            cost = sum(
                times * (shape.rows * length + BATCH) + (0 if shape in compiled else price)
                for times, shape in shapes
            )
            plans.append(BatchPlan(cost, shapes))
    return min(plans)


def steps(longest: int, octave: int) -> list[int]:
    """Returns lengths up to and including `longest`, at most `octave` from 2^k to below 2^(k+1).

    Lengths differ by at least four tokens, except for the last one.
    """
    lengths, base = [], MIN_LENGTH
    while base < longest:
        lengths += range(base, min(2 * base, longest), max(4, base // octave))
        base *= 2
    return [*lengths, longest]


def regrouped(
    blocks: Iterable[Mapping[str, Any]], name: str, field: Any, batching: Batching, cut: bool
) -> Iterator[dict[str, Any]]:
    """Yields batches of texts of similar length, the longest of a block first.

    They contain the valid rows of `blocks` in another order. Padding rows are not valid.

    Args:
      blocks: batches of `data.pipeline.eval_batches`, of any size.
      name: name of the text field.
      field: config of the text field.
      cut: True to remove padding.
    """
    compiled: frozenset[Shape] = frozenset()
    for block in blocks:
        valid = np.flatnonzero(block["valid"])
        if not len(valid):
            continue
        counts = np.full(len(valid), field.length)
        if cut:
            counts = np.maximum(1, field.lengths(block[name]))[valid]
        shapes = batching.shapes(counts, field.length, compiled)
        compiled |= frozenset(shapes)
        remaining = valid[np.argsort(-counts, kind="stable")]
        for rows, length in shapes:
            if not len(remaining):  # shorter texts have filled the batches of longer ones
                break
            selected, remaining = remaining[:rows], remaining[rows:]
            index = np.concatenate([selected, np.repeat(selected[:1], rows - len(selected))])
            arrays = jax.tree.map(lambda x: x[index], dict(block[name]))  # noqa: B023
            yield {
                name: field.trimmed(arrays, length) if cut else arrays,
                "record": block["record"][index],
                "valid": np.arange(rows) < len(selected),
            }


class InOrder:
    """Collects embeddings of `count` items in any order, without a second copy of dense ones.

    Attributes:
      present: True for items with embeddings, bool [count].
    """

    def __init__(self, count: int) -> None:
        self.present = np.zeros(count, bool)
        self._dense: np.ndarray | None = None
        self._sparse: list[Any] = []
        self._indices: list[np.ndarray] = []  # indices of the rows in `_sparse`

    def put(self, rows: Any, indices: np.ndarray) -> None:
        """Stores embeddings [b, M, N], or CSR [b, V], of items [b]."""
        self.present[indices] = True
        if scipy.sparse.issparse(rows):
            self._sparse.append(rows)
            self._indices.append(indices)
            return
        if self._dense is None:
            self._dense = np.empty((len(self.present), *rows.shape[1:]), rows.dtype)
        self._dense[indices] = rows

    def embeddings(self) -> Any:
        """Returns the embeddings of the items that are present, in order."""
        if self._dense is not None:
            return self._dense if self.present.all() else self._dense[self.present]
        rows: Any = scipy.sparse.vstack(self._sparse, format="csr")
        return rows[np.argsort(np.concatenate(self._indices))]
