"""Sparse rows made dense by products with one-hot matrices: for TPUs.

A TPU writes scattered elements one after the other: on v5e 24 cycles for each, in addition to a
sort of their indices (static bundles of the compiled loop). For 4,096 gated queries of 597 terms
that is 58 million cycles. The product below takes 11 million, and its one-hot operands are never
stored. CPUs and GPUs scatter at the speed of their memory.

The number of a term is 128 * chunk + lane. A row [V] is a matrix [V / 128, 128] of chunks and
lanes: the sum over its K terms of the outer product of their one-hot chunks and their values at
one-hot lanes. At the highest precision the values come out exactly, as every sum has one addend
that is not 0.
"""

import jax
import jax.numpy as jnp

from big_retrieval.runtime.chips import LANES


def dense(values: jax.Array, terms: jax.Array, width: int) -> jax.Array:
    """Rows [n, width] of values [n, K] at terms int32 [n, K], -1 for none.

    Terms that occur several times in a row are added. Differentiable in the values. A NaN or an
    infinite value makes its whole row NaN.
    """
    chunk, lane = _one_hot(terms, width)
    placed = jnp.where(lane, values[:, :, None], 0)  # [n, K, 128]
    ones = chunk.astype(values.dtype)  # [n, K, V / 128]
    rows = jnp.einsum("nkc,nkl->ncl", ones, placed, precision="highest")
    return rows.reshape(len(terms), -1)[:, :width]


def _one_hot(terms: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Chunk and lane of terms, bool [n, K, V / 128] and bool [n, K, 128]; -1 has no chunk."""
    chunks = jnp.arange(-(-width // LANES))
    lane = terms % LANES  # [n, K]
    chunk = (terms - lane) // LANES
    return chunk[:, :, None] == chunks, lane[:, :, None] == jnp.arange(LANES)
