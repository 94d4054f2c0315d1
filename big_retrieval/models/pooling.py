"""Pooled vocabulary logits without the [B, L, V] array, forward or backward.

Every position's projection onto V columns is made for one block of columns at a time, pooled over
the positions and forgotten. Max pooling saves the positions of the maxima, one small integer for
each of [B, V], and its derivative is one of two sums over them: "sparse" gathers and adds the rows
that won, O(B V D) operations without any product over L, which suits CPUs; "dense" rebuilds the
one-hot tile of a block and multiplies, which suits matrix units. Mean pooling makes its tiles again.

Under a mesh rows lie on the axes data and fsdp and columns on tensor. The derivative is written
outside `shard_map`, which therefore never has to transpose a collective.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.errors import UserError
from big_retrieval.models.layers import Dtype, wide

Backward = Literal["auto", "sparse", "dense"]
ROW_AXES = ("data", "fsdp")
CPU_BLOCK = 512  # columns; half as much memory as 1024, and as fast
TILE_BYTES = 2**29  # of a block's [B, L, C] float32 logits on accelerators: few, large kernels

# Instead of -inf: finite through every activation, and 0 behind elu1p and relu.
EXCLUDED = -1e30


@flax.struct.dataclass
class Inputs:
    """What is pooled.

    Attributes:
      hidden: [B, L, D].
      kernel: [R, D], R rows of which V are the columns' weights.
      bias: [V], or None.
    """

    hidden: jax.Array
    kernel: jax.Array
    bias: jax.Array | None


@flax.struct.dataclass
class Selection:
    """What takes part; nothing here has a gradient.

    Attributes:
      mask: bool [B, L], true at the positions that take part; None: all do.
      rows: int32 [V], the kernel's row of each column; None: consecutive ones.
    """

    mask: jax.Array | None
    rows: jax.Array | None


class Rule(Protocol):
    """How the positions of a block are pooled; static and hashable."""

    def forward(self, block: Inputs, mask: jax.Array | None) -> tuple[jax.Array, Any]:
        """A block with kernel [C, D] -> pooled [B, C] and what `backward` needs, [B, C] or None."""
        ...

    def backward(
        self, block: Inputs, mask: jax.Array | None, saved: Any, g: jax.Array, d_hidden: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """g [B, C] -> d_hidden [B, L, D] with the block's part added, d_kernel [C, D], d_bias [C]."""
        ...


@dataclasses.dataclass(frozen=True)
class Max:
    """The largest logit over the positions; of equal ones the first has the whole gradient.

    Attributes:
      backward_form: "sparse" or "dense".
    """

    backward_form: str

    def forward(self, block: Inputs, mask: jax.Array | None) -> tuple[jax.Array, Any]:
        """See `Rule`; saves the positions of the maxima."""
        tile = logits(block.hidden, block.kernel)  # [B, L, C]
        if mask is not None:
            tile = jnp.where(mask[:, :, None], tile, EXCLUDED)
        length = tile.shape[1]
        top = jnp.max(tile, axis=1)  # [B, C]
        # Two passes over the tile: cheaper on CPUs than argmax. NaN equals nothing, hence the clip.
        number = jnp.arange(length, dtype=jnp.int32)[:, None]  # [L, 1]
        first = jnp.min(jnp.where(tile == top[:, None], number, length - 1), axis=1)
        pooled = top if block.bias is None else top + block.bias.astype(top.dtype)
        return pooled, first.astype(position_dtype(length))

    def backward(
        self, block: Inputs, mask: jax.Array | None, saved: Any, g: jax.Array, d_hidden: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """See `Rule`."""
        del mask  # a masked position wins only in rows without any other, whose g is 0
        form = _dense if self.backward_form == "dense" else _sparse
        return *form(block, saved, g, d_hidden), jnp.sum(g, axis=0)


def _dense(
    block: Inputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Two products with the tile that has g at the winning positions, 0 elsewhere."""
    batch, length, width = block.hidden.shape
    number = jnp.arange(length, dtype=position.dtype)[:, None]  # [L, 1]
    tile = jnp.where(position[:, None] == number, g[:, None], 0)  # [B, L, C]
    tile = tile.reshape(batch * length, -1).astype(block.hidden.dtype)  # [B*L, C]
    flat = block.hidden.reshape(batch * length, width)
    d_kernel = _matmul(tile.T, flat)  # [C, D]
    return d_hidden + _matmul(tile, block.kernel).reshape(d_hidden.shape), d_kernel


def _sparse(
    block: Inputs, position: jax.Array, g: jax.Array, d_hidden: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One gather and one scatter of C rows for each sample."""
    length = block.hidden.shape[1]
    kernel = block.kernel.astype(d_hidden.dtype)

    def sample(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        d_hidden, d_kernel = found
        share, at = g[i][:, None], position[i].astype(jnp.int32)  # [C, 1], [C]
        d_kernel = d_kernel + share * block.hidden[i][at].astype(d_kernel.dtype)  # [C, D]
        mine = jax.ops.segment_sum(share * kernel, at, num_segments=length)  # [L, D]
        return d_hidden.at[i].add(mine), d_kernel

    start = d_hidden, jnp.zeros(kernel.shape, d_hidden.dtype)
    return jax.lax.fori_loop(0, g.shape[0], sample, start)


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean over the positions of an activation of the logits.

    Attributes:
      activation: elementwise and non-decreasing.
      top: only so many of the largest are averaged; None: all.
    """

    activation: Callable[[jax.Array], jax.Array]
    top: int | None = None

    def forward(self, block: Inputs, mask: jax.Array | None) -> tuple[jax.Array, Any]:
        """See `Rule`; saves nothing."""
        tile = logits(block.hidden, block.kernel)  # [B, L, C]
        if block.bias is not None:
            tile = tile + block.bias.astype(tile.dtype)
        length = tile.shape[1]
        count = jnp.full((), length) if mask is None else jnp.sum(mask, axis=1)[:, None]  # [B, 1]
        if mask is not None:
            tile = jnp.where(mask[:, :, None], tile, EXCLUDED)
        if self.top is not None and self.top < length:
            best, _ = jax.lax.top_k(jnp.swapaxes(tile, 1, 2), self.top)  # [B, C, top]
            tile, count = jnp.swapaxes(best, 1, 2), jnp.minimum(count, self.top)
        values = jnp.where(tile > EXCLUDED / 2, self.activation(tile), 0)
        return jnp.sum(values, axis=1) / jnp.maximum(count, 1), None

    def backward(
        self, block: Inputs, mask: jax.Array | None, saved: Any, g: jax.Array, d_hidden: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """See `Rule`."""
        del saved
        _, pull = jax.vjp(lambda block: self.forward(block, mask)[0], block)
        (d_block,) = pull(g)
        d_bias = jnp.zeros(g.shape[1:], g.dtype) if d_block.bias is None else d_block.bias
        return d_hidden + d_block.hidden, d_block.kernel, d_bias
