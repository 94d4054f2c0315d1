"""Conversion of sparse rows to dense ones by products with one-hot matrices, for TPUs.

A TPU scatters elements one after the other: on v5e, each takes 24 cycles, in addition to a sort of
their indices (static bundles of the compiled loop). For 4,096 gated queries of 597 terms, this is
58 million cycles. The product below takes 11 million, and its one-hot operands are never stored.
CPUs and GPUs scatter at memory speed.

A term is 128 * chunk + lane. A row [V] is a matrix [V / 128, 128] of chunks and lanes. The matrix
sums, over the K terms of the row, outer products of a one-hot chunk and a value at a one-hot lane.
With the highest precision, the values are exact: every sum has at most one addend other than 0.
"""

import jax
import jax.numpy as jnp

from big_retrieval.runtime.chips import LANES


def dense(values: jax.Array, terms: jax.Array, width: int) -> jax.Array:
    """Adds up values [n, K] at terms int32 [n, K] (-1 for none) to rows [n, width].

    Differentiable in the values. A NaN or an infinite value makes its whole row NaN.
    """
    chunk, lane = _one_hot(terms, width)
    placed = jnp.where(lane, values[:, :, None], 0)  # [n, K, 128]
    ones = chunk.astype(values.dtype)  # [n, K, V / 128]
    rows = jnp.einsum("nkc,nkl->ncl", ones, placed, precision="highest")
    return rows.reshape(len(terms), -1)[:, :width]


def _one_hot(terms: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Returns chunk and lane of terms, bool [n, K, V / 128] and [n, K, 128]; -1 has no chunk."""
    chunks = jnp.arange(-(-width // LANES))
    lane = terms % LANES  # [n, K]
    chunk = (terms - lane) // LANES
    return chunk[:, :, None] == chunks, lane[:, :, None] == jnp.arange(LANES)
