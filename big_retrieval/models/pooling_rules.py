"""Rules that pool a block of vocabulary logits over the positions, and their derivatives.

Max pooling saves the positions of the maxima, one small integer for each of [B, V]. Its derivative
has two forms:

* "sparse" gathers and adds the rows of the maxima: O(B V D) operations without a product over L,
  which suits CPUs.
* "dense" rebuilds the tile of a block from the positions and multiplies, which suits matrix units.

Mean pooling computes its tiles again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.models.layers import EXCLUDED, wide


@flax.struct.dataclass
class PoolingInputs:
    """Arrays to project and pool, or the gradients of the first three in float32 or wider."""

    hidden: jax.Array  # [B, L, D]
    kernel: jax.Array  # [R, D]; some or all of its rows are the columns. In a block, [C, D]
    bias: Any  # [V], or None. In a block, [C]
    mask: jax.Array | None = None  # bool [B, L], the positions that take part; None for all
    # int32 [V], the kernel's row of every column; None for consecutive rows and in a block
    rows: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Max:
    """The largest logit. Among equal logits, the first position gets the full gradient.

    `forward` returns the pooled block [B, C], and an array [B, C], or None, for `backward`.
    `backward` returns the gradients of sum(g * pooled) for g [B, C], and adds `d_hidden` to the
    gradient of `hidden`. `Mean` has the same methods.
    """

    dense: bool  # True for the dense form of the derivative
    # compute maximum and position in one reduction, which a TPU fuses with the product without
    # storing logits: 4.8 instead of 14.5 million cycles on v5e for 29,522 columns of
    # [256, 49, 768]. Two reductions cost less on a CPU; GPUs were not measured.
    joint: bool = False

    def forward(self, block: PoolingInputs) -> tuple[jax.Array, jax.Array]:
        """Returns maxima, -1e30 if no position takes part, and their positions, uint8 or wider."""
        tile = _logits(block)  # [B, L, C]
        largest, first = (_largest_jointly if self.joint else _largest)(tile)  # [B, C]
        # A column has the same bias at all positions: adding it to the maximum is cheaper.
        return _biased(largest, block), first.astype(np.min_scalar_type(tile.shape[1] - 1))

    def backward(
        self, block: PoolingInputs, saved: jax.Array, g: jax.Array, d_hidden: jax.Array
    ) -> PoolingInputs:
        """Differentiates the forward pass."""
        # The mask is ignored: a masked position won only in rows without any other, where g is 0.
        form = _dense if self.dense else _sparse
        d_hidden, d_kernel = form(block, saved, g, d_hidden)
        return PoolingInputs(d_hidden, d_kernel, jnp.sum(g, axis=0))


def _largest(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns maxima over axis 1 of [B, L, C] and their first positions (for NaN the last)."""
    length = tile.shape[1]
    largest = jnp.max(tile, axis=1)  # [B, C]
    # A second pass over the tile costs less than argmax on a CPU.
    index = jnp.arange(length, dtype=jnp.int32)[:, None]  # [L, 1]
    first = jnp.min(jnp.where(tile == largest[:, None], index, length - 1), axis=1)  # [B, C]
    return largest, first


def _largest_jointly(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the result of `_largest` by one reduction; only the position of NaN differs."""

    def larger(a: Any, b: Any) -> Any:
        (x, i), (y, j) = a, b
        second = (y > x) | (y != y) | ((y == x) & (j < i))
        return jnp.where(second, y, x), jnp.where(second, j, i)

    index = jax.lax.broadcasted_iota(jnp.int32, tile.shape, 1)  # [B, L, C]
    start = jnp.asarray(-jnp.inf, tile.dtype), jnp.int32(tile.shape[1] - 1)
    return jax.lax.reduce((tile, index), start, larger, (1,))


def _dense(
    block: PoolingInputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    index = jnp.arange(d_hidden.shape[1], dtype=position.dtype)[:, None]  # [L, 1]
    tile = jnp.where(position[:, None] == index, g[:, None], 0)  # [B, L, C], g at the maxima
    tile = tile.reshape(-1, g.shape[1]).astype(block.hidden.dtype)  # [B*L, C]
    flat = block.hidden.reshape(-1, block.hidden.shape[-1])  # [B*L, D]
    more = _matmul(tile, block.kernel).reshape(d_hidden.shape)  # [B, L, D]
    return d_hidden + more, _matmul(tile.T, flat)


def _sparse(
    block: PoolingInputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    kernel = block.kernel.astype(d_hidden.dtype)  # [C, D]
    bounds = "promise_in_bounds"

    def gather(i: jax.Array, d_kernel: jax.Array) -> jax.Array:
        won = block.hidden.at[i, position[i].astype(jnp.int32)].get(mode=bounds)  # [C, D]
        return d_kernel + g[i][:, None] * won

    def scatter(i: jax.Array, d_hidden: jax.Array) -> jax.Array:
        won = d_hidden.at[i, position[i].astype(jnp.int32)]  # [C, D]
        return won.add(g[i][:, None] * kernel, mode=bounds)

    count = g.shape[0]
    # A single loop would use two blocks [C, D] at once, too large for a core's cache.
    d_kernel = jax.lax.fori_loop(0, count, gather, jnp.zeros_like(kernel), unroll=min(4, count))
    return jax.lax.fori_loop(0, count, scatter, d_hidden), d_kernel


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of an elementwise, non-decreasing activation over the positions that take part."""

    activation: Callable[[jax.Array], jax.Array]
    top_k: int | None = None  # average only this number of the largest values; None for all

    def forward(self, block: PoolingInputs) -> tuple[jax.Array, None]:
        """Pools to 0 if no position takes part; saves nothing."""
        tile, mask = _biased(_logits(block), block), block.mask  # [B, L, C]
        count = jnp.full(tile.shape[:1], tile.shape[1]) if mask is None else jnp.sum(mask, axis=1)
        if self.top_k is not None and self.top_k < tile.shape[1]:
            tile = jax.lax.top_k(jnp.swapaxes(tile, 1, 2), self.top_k)[0]  # [B, C, K]
            tile, count = jnp.swapaxes(tile, 1, 2), jnp.minimum(count, self.top_k)
        # Masked logits are EXCLUDED plus their bias.
        values = jnp.where(tile > EXCLUDED / 2, self.activation(tile), 0)
        return jnp.sum(values, axis=1) / jnp.maximum(count, 1)[:, None], None

    def backward(
        self, block: PoolingInputs, saved: None, g: jax.Array, d_hidden: jax.Array
    ) -> PoolingInputs:
        """Differentiates the forward pass, whose tiles are computed again."""
        del saved

        def pool(hidden: jax.Array, kernel: jax.Array, bias: Any) -> jax.Array:
            return self.forward(PoolingInputs(hidden, kernel, bias, block.mask))[0]

        _, pull = jax.vjp(pool, block.hidden, block.kernel, block.bias)
        hidden, kernel, bias = pull(g)
        d_hidden = d_hidden + hidden
        bias = jnp.zeros(g.shape[1:], g.dtype) if bias is None else bias
        dtype = d_hidden.dtype
        return PoolingInputs(d_hidden, kernel.astype(dtype), bias.astype(dtype))


def _logits(block: PoolingInputs) -> jax.Array:
    """Returns logits without bias, [B, L, C]; -1e30 where the mask is false."""
    batch, length, width = block.hidden.shape
    flat = _matmul(block.hidden.reshape(batch * length, width), block.kernel.T)  # [B*L, C]
    tile = flat.reshape(batch, length, -1)  # [B, L, C]
    return tile if block.mask is None else jnp.where(block.mask[:, :, None], tile, EXCLUDED)


def _biased(x: jax.Array, block: PoolingInputs) -> jax.Array:
    return x if block.bias is None else x + block.bias.astype(x.dtype)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Computes a [.., K] @ b [K, ..] in float32 or wider; full precision for float32 operands."""
    precision = "highest" if wide(a.dtype) == a.dtype else None
    return jnp.matmul(a, b, precision=precision, preferred_element_type=wide(a.dtype))
