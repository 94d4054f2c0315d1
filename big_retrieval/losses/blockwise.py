"""Sweeps over the logits of two sides, tile by tile, forward and backward.

The largest arrays are the sides and one tile of C x C logits. The last block of a side overlaps the
block before, so that it has full size and no side is padded or copied. Shared rows count only in
the first of the two blocks.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.config.topologies import Topology
from big_retrieval.losses.core import TileSweep
from big_retrieval.losses.tiles import SavedRows, SideRows, Stats, Tile, classify
from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse.sharded import dense_locally, take_locally, terms_here

BLOCK_BYTES = {"cpu": 2**20}  # scores of one tile, which fit into a core's cache
ACCELERATOR_BLOCK_BYTES = 2**26  # few, large kernels
# On a TPU, a tile may have all rotating rows up to TPU_ALL_ROWS_BYTES. Otherwise, its rotating rows
# have at most TPU_ROWS_BYTES: half of the vector memory, as their gradient has the same size.
TPU_ALL_ROWS_BYTES, TPU_ROWS_BYTES = 2**29, 2**26


@dataclasses.dataclass(frozen=True)
class _Block:
    """The n rows of one side, block by block; two blocks form a tile."""

    sweep: TileSweep
    rows: int

    @property
    def size(self) -> int:
        return min(self.sweep.block, self.rows)

    @property
    def count(self) -> int:
        return -(-self.rows // self.size)

    def start(self, index: Any) -> Any:
        return jnp.minimum(index * self.size, self.rows - self.size)

    def take(self, tree: Any, index: Any) -> Any:
        start = self.start(index)
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, self.size), tree)

    def side(self, side: SideRows, index: Any) -> SideRows:
        """Returns the block's rows; padding and rows of the block before are 0 and do not count."""
        rows = self.take(side, index)
        fresh = self.start(index) + jnp.arange(self.size) >= index * self.size
        counted = rows.counted & fresh
        # Padding may hold any value, NaN included.
        embeddings = counted_rows(rows.embeddings, counted)
        return dataclasses.replace(rows, counted=counted, embeddings=embeddings)

    def put(self, tree: Any, rows: Any, index: Any) -> Any:
        start = self.start(index)
        return jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, start, 0), tree, rows
        )


def counted_rows(x: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns rows [n, ...] with 0 where `counted`, bool [n], is False."""
    return jnp.where(counted.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


def block_size(topology: Topology, embeddings: tuple[int, ...], platform: str | None = None) -> int:
    """Returns C, the number of rows and of columns of a tile, a power of two.

    The C * C scores fill `BLOCK_BYTES` of a CPU, or `ACCELERATOR_BLOCK_BYTES`. On a TPU, C is
    smaller if the rotating rows are large. VDR's loss of 4,096 pairs and 29,523 terms on v5e-16,
    forward and backward: one tile of 4,096 takes 54 million cycles and 2,277 MiB, because the
    compiler keeps the dense queries for the backward pass; tiles of 512 take 71 million and 256
    MiB. In larger batches, which need several tiles, one of 1,024 takes 11% more than two of 512.

    Args:
      embeddings: shape [n, M, N].
      platform: None for `traced_platform`.
    """
    platform = platform or traced_platform()
    bytes_ = BLOCK_BYTES.get(platform, ACCELERATOR_BLOCK_BYTES)
    # log2(C) is half of the logarithm of the number of scores; C is at least 16.
    scores = bytes_ // (4 * topology.numbers_per_score(embeddings))
    power = (scores.bit_length() - 1) // 2
    row_bytes = 4 * math.prod(embeddings[1:])
    if platform == "tpu" and embeddings[0] * row_bytes > TPU_ALL_ROWS_BYTES:
        power = min(power, (TPU_ROWS_BYTES // row_bytes).bit_length() - 1)
    return 1 << max(4, power)


def forward(
    sweep: TileSweep,
    local: SideRows,
    logit_scale: Any,
    bias: Any,
    rotating: SideRows,
    stats: tuple[Stats, Stats],
) -> tuple[Stats, Stats]:
    """Merges all tiles of n local and m rotating rows into their statistics, [n] and [m]."""
    reduction = sweep.reduction
    rows, columns = (_Block(sweep, side.embeddings.shape[0]) for side in (local, rotating))

    def row_block(i: Any, stats: tuple[Stats, Stats]) -> tuple[Stats, Stats]:
        r = rows.side(local, i)

        def add_tile(j: Any, stats: tuple[Stats, Stats]) -> tuple[Stats, Stats]:
            of_rows, of_columns = stats
            t = columns.side(rotating, j)
            scores = summed(_scores(sweep, r.embeddings, t.embeddings, t.terms), sweep.feature_axis)
            logits, tile = _tile(sweep, scores, r, t, logit_scale, bias)
            new_rows, new_columns = reduction.read(logits, tile)
            merged = reduction.merge(columns.take(of_columns, j), new_columns)
            # Rows shared with the block before do not count in this tile; merging the statistics
            # of such entries does not change them.
            return reduction.merge(of_rows, new_rows), columns.put(of_columns, merged, j)

        of_rows, of_columns = jax.lax.fori_loop(
            0, columns.count, add_tile, (rows.take(stats[0], i), stats[1])
        )
        return rows.put(stats[0], of_rows, i), of_columns

    return jax.lax.fori_loop(0, rows.count, row_block, stats)


def _scores(
    sweep: TileSweep, local: jax.Array, rotating: jax.Array, terms: jax.Array | None
) -> jax.Array:
    """Computes scores [R, T]; sparse rotating rows become dense for this tile only."""
    if terms is not None:
        width = local.shape[-1]
        terms = terms_here(terms, width, sweep.feature_axis)
        rotating = dense_locally(rotating, terms, width)[:, None]  # [T, 1, V]
    return sweep.topology.score(local, rotating)


def paired_scores(
    sweep: TileSweep, documents: jax.Array, queries: jax.Array, terms: jax.Array | None
) -> jax.Array:
    """Computes `Topology.paired`, also of sparse queries [n, K] with documents [n, 1, V]."""
    if terms is None:
        return sweep.topology.paired(documents, queries)
    terms = terms_here(terms, documents.shape[-1], sweep.feature_axis)
    # The terms of other devices are -1; their products are set to 0 below.
    values = take_locally(documents[:, 0], terms)  # [n, K]
    return jnp.sum(jnp.where(terms >= 0, values * queries, 0), axis=1)


def _tile(
    sweep: TileSweep, scores: jax.Array, r: SideRows, t: SideRows, logit_scale: Any, bias: Any
) -> tuple[jax.Array, Tile]:
    """Returns the logits [R, T] of summed scores, and their labels."""
    logits = logit_scale * scores if bias is None else logit_scale * scores + bias
    return logits, classify(r, t, sweep.false_negatives)


def summed(scores: jax.Array, axis: str | None) -> jax.Array:
    """Sums partial scores over the devices that share a row's features."""
    return scores if axis is None else jax.lax.psum(scores, axis)


def backward(
    sweep: TileSweep,
    local: SideRows,
    logit_scale: Any,
    bias: Any,
    rotating: SideRows,
    saved: tuple[SavedRows, SavedRows],
    grads: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Adds the gradients of all tiles, whose scores it computes again.

    Args:
      saved: statistics and incoming gradients of the local and the rotating rows.
      grads: previous gradients: local embeddings [n, ...], rotating embeddings [m, ...], logit
        scale [] and bias [].
    """
    rows, columns = (_Block(sweep, side.embeddings.shape[0]) for side in (local, rotating))

    def row_block(i: Any, grads: Any) -> Any:
        r, row_saved = rows.side(local, i), rows.take(saved[0], i)

        def add_tile(j: Any, grads: Any) -> Any:
            of_rows, of_columns, of_scale, of_bias = grads
            t = columns.side(rotating, j)
            function = functools.partial(_scores, sweep, terms=t.terms)
            # With sharded features, `partial` is this device's part of the scores. The sum over
            # devices is outside of the derivative, so that no collective is transposed.
            partial, pull = jax.vjp(function, r.embeddings, t.embeddings)
            scores = summed(partial, sweep.feature_axis)
            logits, tile = _tile(sweep, scores, r, t, logit_scale, bias)
            slope = sweep.reduction.pull(logits, tile, row_saved, columns.take(saved[1], j))
            d_rows, d_columns = pull(logit_scale * slope)  # all parts of a sum have its gradient
            of_columns = columns.put(of_columns, columns.take(of_columns, j) + d_columns, j)
            of_scale = of_scale + jnp.sum(slope * scores)
            return of_rows + d_rows, of_columns, of_scale, of_bias + jnp.sum(slope)

        # The gradient of the block is summed in a small array and written once, not per tile.
        start = (jnp.zeros_like(r.embeddings), *grads[1:])
        of_rows, *others = jax.lax.fori_loop(0, columns.count, add_tile, start)
        return rows.put(grads[0], rows.take(grads[0], i) + of_rows, i), *others

    return jax.lax.fori_loop(0, rows.count, row_block, grads)
