"""How one block of vocabulary logits is pooled over the positions, and the derivative of that.

Max pooling saves the positions of the maxima, one small integer for each of [B, V]. Its derivative
takes one of two forms: "sparse" gathers and adds the rows that won, O(B V D) operations with no
product over L, which suits CPUs; "dense" rebuilds the tile of a block from the positions and
multiplies, which suits matrix units. Mean pooling makes its tiles again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.models.layers import Dtype, wide

# Instead of -inf: a finite number that elu1p and log1p_relu take to 0, with slope 0.
EXCLUDED = -1e30


@flax.struct.dataclass
class PoolingInputs:
    """What is projected and pooled.

    Attributes:
      hidden: [B, L, D].
      kernel: [R, D]; R rows, some or all of which are columns' weights. In a block, [C, D].
      bias: [V], or None. In a block, [C].
    """

    hidden: jax.Array
    kernel: jax.Array
    bias: jax.Array | None


@flax.struct.dataclass
class Gradient:
    """Gradient with respect to `PoolingInputs`, in float32 or wider; it always has `bias`."""

    hidden: jax.Array
    kernel: jax.Array
    bias: jax.Array


class Rule(Protocol):
    """How the positions of a block are pooled; static and hashable."""

    def forward(self, block: PoolingInputs, mask: jax.Array | None) -> tuple[jax.Array, Any]:
        """A block and mask [B, L] -> pooled [B, C] and what `backward` needs, [B, C] or None."""
        ...

    def backward(
        self,
        block: PoolingInputs,
        mask: jax.Array | None,
        saved: Any,
        g: jax.Array,
        d_hidden: jax.Array,
    ) -> Gradient:
        """The gradient of sum(g * pooled), g [B, C]; that of hidden is added to `d_hidden`."""
        ...


@dataclasses.dataclass(frozen=True)
class Max:
    """The largest logit; where several are equal, the first position has the whole gradient.

    Attributes:
      dense: the form of the derivative, see the module.
      joint: finds maximum and position in one reduction, which a TPU fuses with the product, so
        that no logits are stored: 4.8 instead of 14.5 million cycles on v5e for 29,522 columns of
        [256, 49, 768]. Two reductions cost less on a CPU; GPUs were not measured.
    """

    dense: bool
    joint: bool = False

    def forward(self, block: PoolingInputs, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """See `Rule`; saves the positions of the maxima, [B, C]. Without any, about -1e30."""
        tile = _logits(block, mask)  # [B, L, C]
        largest, first = (_largest_jointly if self.joint else _largest)(tile)  # [B, C]
        # A column's bias is the same at all positions: adding it to the maximum costs [B, C] only.
        return _biased(largest, block), first.astype(position_dtype(tile.shape[1]))

    def backward(
        self,
        block: PoolingInputs,
        mask: jax.Array | None,
        saved: jax.Array,
        g: jax.Array,
        d_hidden: jax.Array,
    ) -> Gradient:
        """See `Rule`."""
        del mask  # a masked position has won only where there is no other, and there g is 0
        form = _dense if self.dense else _sparse
        d_hidden, d_kernel = form(block, saved, g, d_hidden)
        return Gradient(d_hidden, d_kernel, jnp.sum(g, axis=0))


def _largest(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Maxima over axis 1 of [B, L, C] and their first positions; the last position for NaN."""
    length = tile.shape[1]
    largest = jnp.max(tile, axis=1)  # [B, C]
    # A second pass over the tile costs less than argmax does on a CPU.
    number = jnp.arange(length, dtype=jnp.int32)[:, None]  # [L, 1]
    first = jnp.min(jnp.where(tile == largest[:, None], number, length - 1), axis=1)  # [B, C]
    return largest, first


def _largest_jointly(tile: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Result of `_largest` by one reduction; the position of a NaN is another one."""

    def larger(a: Any, b: Any) -> Any:
        (x, i), (y, j) = a, b
        second = (y > x) | (y != y) | ((y == x) & (j < i))
        return jnp.where(second, y, x), jnp.where(second, j, i)

    number = jax.lax.broadcasted_iota(jnp.int32, tile.shape, 1)  # [B, L, C]
    # Of -inf alone the position is any of them.
    start = jnp.asarray(-jnp.inf, tile.dtype), jnp.int32(tile.shape[1] - 1)
    return jax.lax.reduce((tile, number), start, larger, (1,))


def position_dtype(length: int) -> Dtype:
    """The smallest unsigned integer that holds the positions of texts of a length."""
    return np.min_scalar_type(length - 1)


def _dense(
    block: PoolingInputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Two products with the tile that holds g where a position has won and 0 elsewhere."""
    number = jnp.arange(d_hidden.shape[1], dtype=position.dtype)[:, None]  # [L, 1]
    tile = jnp.where(position[:, None] == number, g[:, None], 0)  # [B, L, C]
    tile = tile.reshape(-1, g.shape[1]).astype(block.hidden.dtype)  # [B*L, C]
    flat = block.hidden.reshape(-1, block.hidden.shape[-1])  # [B*L, D]
    more = matmul(tile, block.kernel).reshape(d_hidden.shape)  # [B, L, D]
    return d_hidden + more, matmul(tile.T, flat)


def _sparse(
    block: PoolingInputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """C rows gathered and C rows added for each sample.

    Two loops, as one would work on two blocks [C, D] at once and drop out of a core's cache.
    """
    kernel = block.kernel.astype(d_hidden.dtype)  # [C, D]
    bounds = "promise_in_bounds"

    def gather(i: jax.Array, d_kernel: jax.Array) -> jax.Array:
        won = block.hidden.at[i, position[i].astype(jnp.int32)].get(mode=bounds)  # [C, D]
        return d_kernel + g[i][:, None] * won

    def scatter(i: jax.Array, d_hidden: jax.Array) -> jax.Array:
        won = d_hidden.at[i, position[i].astype(jnp.int32)]  # [C, D]
        return won.add(g[i][:, None] * kernel, mode=bounds)

    count = g.shape[0]
    d_kernel = jax.lax.fori_loop(0, count, gather, jnp.zeros_like(kernel), unroll=min(4, count))
    return jax.lax.fori_loop(0, count, scatter, d_hidden), d_kernel


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of an activation of the logits over the positions that take part.

    Attributes:
      activation: elementwise, non-decreasing.
      top_k: only so many of the largest values of each column are averaged; None: all.
    """

    activation: Callable[[jax.Array], jax.Array]
    top_k: int | None = None

    def forward(self, block: PoolingInputs, mask: jax.Array | None) -> tuple[jax.Array, None]:
        """See `Rule`; saves nothing. 0 where no position takes part."""
        tile = _biased(_logits(block, mask), block)  # [B, L, C]
        count = jnp.full(tile.shape[:1], tile.shape[1]) if mask is None else jnp.sum(mask, axis=1)
        if self.top_k is not None and self.top_k < tile.shape[1]:
            tile = jax.lax.top_k(jnp.swapaxes(tile, 1, 2), self.top_k)[0]  # [B, C, K]
            tile, count = jnp.swapaxes(tile, 1, 2), jnp.minimum(count, self.top_k)
        # Masked logits are not exactly EXCLUDED any more: their bias has been added.
        values = jnp.where(tile > EXCLUDED / 2, self.activation(tile), 0)
        return jnp.sum(values, axis=1) / jnp.maximum(count, 1)[:, None], None

    def backward(
        self,
        block: PoolingInputs,
        mask: jax.Array | None,
        saved: None,
        g: jax.Array,
        d_hidden: jax.Array,
    ) -> Gradient:
        """See `Rule`."""
        del saved
        _, pull = jax.vjp(lambda block: self.forward(block, mask)[0], block)
        (found,) = pull(g)
        d_hidden = d_hidden + found.hidden
        bias = jnp.zeros(g.shape[1:], g.dtype) if found.bias is None else found.bias
        return Gradient(d_hidden, found.kernel.astype(d_hidden.dtype), bias.astype(d_hidden.dtype))


def _logits(block: PoolingInputs, mask: jax.Array | None) -> jax.Array:
    """Without bias, [B, L, C]; about -1e30 where the mask is false."""
    batch, length, width = block.hidden.shape
    flat = matmul(block.hidden.reshape(batch * length, width), block.kernel.T)  # [B*L, C]
    tile = flat.reshape(batch, length, -1)  # [B, L, C]
    return tile if mask is None else jnp.where(mask[:, :, None], tile, EXCLUDED)


def _biased(x: jax.Array, block: PoolingInputs) -> jax.Array:
    return x if block.bias is None else x + block.bias.astype(x.dtype)


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """a [.., K] @ b [K, ..], accumulated in float32 or wider, at full precision from float32 on."""
    precision = "highest" if wide(a.dtype) == a.dtype else None
    return jnp.matmul(a, b, precision=precision, preferred_element_type=wide(a.dtype))
