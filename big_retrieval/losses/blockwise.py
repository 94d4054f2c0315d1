"""Sweeps over all cells of two sides, block by block, forward and backward.

Nothing here is larger than the sides themselves and one block of C x C cells. The last block of a
side starts early enough to be whole; the rows that it shares with the block before do not count in
it, so no side is ever padded or copied.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.config import FalseNegatives
from big_retrieval.losses.cells import (
    Cells,
    Reduction,
    SavedRows,
    SideRows,
    Stats,
    classify,
)
from big_retrieval.similarity import Similarity
from big_retrieval.sparse.sharded import spread_locally, terms_here

BLOCK_BYTES = {"cpu": 2**20}  # of one block's cells: what a core's cache holds
ACCELERATOR_BLOCK_BYTES = 2**26  # few, large kernels


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """What a sweep does, static under jit.

    Attributes:
      topology: scores a block.
      reduction: what the loss reads of the cells.
      false_negatives: what a known pair counts as.
      block: rows and columns of a block; the last may be of any size.
      feature_axis: mesh axis over which the last axis of the points is spread, if any: scores are
        then summed over it, block by block.
    """

    topology: Similarity
    reduction: Reduction
    false_negatives: FalseNegatives
    block: int
    feature_axis: str | None = None


@dataclasses.dataclass(frozen=True)
class _Block:
    """One block of a loop over n rows."""

    sweep: SweepSettings
    rows: int

    @property
    def size(self) -> int:
        return min(self.sweep.block, self.rows)

    @property
    def count(self) -> int:
        return -(-self.rows // self.size)

    def start(self, number: Any) -> Any:
        return jnp.minimum(number * self.size, self.rows - self.size)

    def take(self, tree: Any, number: Any) -> Any:
        """The block's rows of every array."""
        start = self.start(number)
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, self.size), tree)

    def side(self, side: SideRows, number: Any) -> SideRows:
        """The block's rows; padding and those that the block before had are 0 and do not count."""
        part = self.take(side, number)
        fresh = self.start(number) + jnp.arange(self.size) >= number * self.size
        counted = part.counted & fresh
        mask = counted.reshape(-1, *(1,) * (part.points.ndim - 1))
        # What padding holds may be anything, NaN included.
        return dataclasses.replace(part, counted=counted, points=jnp.where(mask, part.points, 0))

    def put(self, tree: Any, part: Any, number: Any) -> Any:
        """Writes the block's rows."""
        start = self.start(number)
        return jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, 0), tree, part
        )


def block_size(topology: Similarity, points: tuple[int, ...], platform: str | None = None) -> int:
    """Rows and columns of a block: the power of two whose scores fill the bytes above.

    Args:
      topology: geodesic scores hold M numbers a cell on the way, the others one.
      points: shape [n, M, N] or [n, V].
      platform: "cpu", "gpu" or "tpu"; the default backend's unless given.
    """
    platform = platform or jax.default_backend()
    bytes_ = BLOCK_BYTES.get(platform, ACCELERATOR_BLOCK_BYTES)
    cells = bytes_ // (4 * topology.numbers_per_cell(points))
    return 1 << max(4, (cells.bit_length() - 1) // 2)


def forward(
    sweep: SweepSettings,
    resident: SideRows,
    travelling: SideRows,
    scale: Any,
    bias: Any,
    stats: tuple[Stats, Stats],
) -> tuple[Stats, Stats]:
    """Merges all cells of two sides into the statistics of their rows.

    Args:
      sweep: what to do.
      resident: n rows.
      travelling: m rows.
      scale: multiplier of the scores, [].
      bias: added to the scaled scores, [], or None.
      stats: of the resident rows [n] and the travelling rows [m], as found.
    """
    reduction = sweep.reduction
    rows, columns = (_Block(sweep, side.points.shape[0]) for side in (resident, travelling))

    def row_block(i: Any, stats: tuple[Stats, Stats]) -> tuple[Stats, Stats]:
        r = rows.side(resident, i)

        def cell_block(j: Any, found: tuple[Stats, Stats]) -> tuple[Stats, Stats]:
            of_rows, of_columns = found
            t = columns.side(travelling, j)
            scores = summed(_scores(sweep, r.points, t.points, t.columns), sweep.feature_axis)
            logits, cells = _cells(sweep, scores, r, t, scale, bias)
            new_rows, new_columns = reduction.read(logits, cells)
            merged = reduction.merge(columns.take(of_columns, j), new_columns)
            return reduction.merge(of_rows, new_rows), columns.put(of_columns, merged, j)

        of_rows, of_columns = jax.lax.fori_loop(
            0, columns.count, cell_block, (rows.take(stats[0], i), stats[1])
        )
        return rows.put(stats[0], of_rows, i), of_columns

    return jax.lax.fori_loop(0, rows.count, row_block, stats)


def _scores(
    sweep: SweepSettings, resident: jax.Array, travelling: jax.Array, columns: jax.Array | None
) -> jax.Array:
    """Scores [R, T]; compact travelling rows are spread out for the block, and then forgotten."""
    if columns is not None:
        width = resident.shape[-1]
        columns = terms_here(columns, width, sweep.feature_axis)
        travelling = spread_locally(travelling, columns, width)
    return sweep.topology.score(resident, travelling)


def paired_scores(
    sweep: SweepSettings, documents: jax.Array, queries: jax.Array, columns: jax.Array | None
) -> jax.Array:
    """`Similarity.paired`, also of compact queries [n, K] with documents [n, V]."""
    if columns is None:
        return sweep.topology.paired(documents, queries)
    columns = terms_here(columns, documents.shape[-1], sweep.feature_axis)
    met = jnp.take_along_axis(documents, jnp.maximum(columns, 0), axis=1)  # [n, K]
    return jnp.sum(jnp.where(columns >= 0, met * queries, 0), axis=1)


def _cells(
    sweep: SweepSettings, scores: jax.Array, r: SideRows, t: SideRows, scale: Any, bias: Any
) -> tuple[jax.Array, Cells]:
    """Logits of summed scores [R, T] and what each cell counts as."""
    logits = scale * scores if bias is None else scale * scores + bias
    return logits, classify(r, t, sweep.false_negatives)


def summed(scores: jax.Array, axis: str | None) -> jax.Array:
    """Partial scores summed over the devices that share a row's features."""
    return scores if axis is None else jax.lax.psum(scores, axis)


def backward(
    sweep: SweepSettings,
    resident: SideRows,
    travelling: SideRows,
    scale: Any,
    bias: Any,
    saved: tuple[SavedRows, SavedRows],
    grads: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Adds the gradients of all cells; every block of scores is computed again.

    Args:
      sweep: what to do.
      resident: n rows.
      travelling: m rows.
      scale: multiplier of the scores, [].
      bias: added to the scaled scores, [], or None.
      saved: statistics and incoming gradients of the resident and the travelling rows.
      grads: gradients so far of the resident points [n, ...], of the travelling points [m, ...],
        of scale [] and of bias [].
    """
    rows, columns = (_Block(sweep, side.points.shape[0]) for side in (resident, travelling))

    def row_block(i: Any, grads: Any) -> Any:
        r, row_saved = rows.side(resident, i), rows.take(saved[0], i)

        def cell_block(j: Any, found: Any) -> Any:
            of_rows, of_columns, of_scale, of_bias = found
            t = columns.side(travelling, j)
            function = functools.partial(_scores, sweep, columns=t.columns)
            partial, pull = jax.vjp(function, r.points, t.points)
            scores = summed(partial, sweep.feature_axis)
            logits, cells = _cells(sweep, scores, r, t, scale, bias)
            slope = sweep.reduction.pull(logits, cells, row_saved, columns.take(saved[1], j))
            d_rows, d_columns = pull(scale * slope)  # a sum's gradient is each part's
            of_columns = columns.put(of_columns, columns.take(of_columns, j) + d_columns, j)
            of_scale = of_scale + jnp.sum(slope * scores)
            return of_rows + d_rows, of_columns, of_scale, of_bias + jnp.sum(slope)

        start = (jnp.zeros_like(r.points), *grads[1:])
        of_rows, *rest = jax.lax.fori_loop(0, columns.count, cell_block, start)
        return rows.put(grads[0], rows.take(grads[0], i) + of_rows, i), *rest

    return jax.lax.fori_loop(0, rows.count, row_block, grads)
