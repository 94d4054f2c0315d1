"""Pooled vocabulary logits without the [B, L, V] array, forward or backward.

One block of columns at a time, all positions are projected onto it and pooled; the logits of the
block are not kept. The last block starts early enough to be whole, so the kernel is never padded or
copied; the columns that it shares with the block before do not count twice.

Under a mesh (`jax.set_mesh`) rows lie on the axes data and fsdp, columns on tensor. The kernel is
gathered over fsdp as it enters; its gradient is summed over data and fsdp, that of the positions
over tensor. The derivative is written outside `shard_map`, which thus never transposes a
collective.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.models.layers import Dtype
from big_retrieval.models.pooling_rules import EXCLUDED, Max, Mean, PoolingInputs, Rule
from big_retrieval.models.pooling_sweep import PoolingCore, Selection, pool
from big_retrieval.runtime.mesh_axes import auto_axes
from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse.sharded import TERM_AXIS

Backward = Literal["auto", "sparse", "dense"]
BACKWARDS = ("auto", "sparse", "dense")
CPU_BLOCK = 512
GPU_TILE_BYTES = 2**31  # of a block's [b, L, C] logits in float32: few, large kernels
TPU_TILE_BYTES = 2**29  # the same, of mean pooling
TPU_BLOCK = 1024  # of max pooling, which stores no logits on a TPU
ROW_AXES = ("data", "fsdp")  # mesh axes over which the batch is sharded
WIDTH_AXIS = "fsdp"  # the one of them over which the kernel's D is sharded as well


@dataclasses.dataclass(frozen=True)
class PoolingOptions:
    """How the blocked loop runs.

    Attributes:
      block: columns of a block; None: what `block_size` gives.
      backward: derivative of max pooling, "sparse" or "dense" (see `pooling_rules`); "auto" is
        sparse on a CPU and dense elsewhere.
    """

    block: int | None = None
    backward: Backward = "auto"


def max_pool(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    columns: Sequence[int] | None = None,
    dtype: Dtype | None = None,
    options: PoolingOptions | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The largest logit of every column, max over l of (hidden @ kernel.T + bias)[b, l, v].

    A non-decreasing activation may follow instead of preceding the maximum. Of equal logits the
    first position has the whole gradient, where JAX's own maximum splits it. A batch that the mesh
    does not divide stays whole on every device; a V is filled up with columns of zeros.

    Args:
      hidden: [B, L, D].
      kernel: [R, D].
      bias: [V], or None.
      mask: [B, L], true (or not 0) at the positions that take part; None: all. What the others hold
        changes nothing, as long as it is finite.
      columns: rows of the kernel that make the V columns, in this order; a `range` of consecutive
        ones costs no look-up. None: all R.
      dtype: of the operands, `hidden`'s unless given; accumulated in float32 or wider.
      options: block size, form of the derivative, names of mesh axes.

    Returns:
      pooled: [B, V], float32 or wider; -1e30, without a gradient, in rows without any position.
      positions: of the maxima, uint8 or wider, [B, V]; they mean nothing in such rows.

    Raises:
      UserError: shapes do not fit, a column is no row of the kernel, the block or the form of the
        derivative is unknown.
    """
    options = options or PoolingOptions()
    if options.backward not in BACKWARDS:
        raise UserError(f"backward {options.backward!r} is unknown; known: {', '.join(BACKWARDS)}.")
    platform = traced_platform()
    auto = "sparse" if platform == "cpu" else "dense"
    form = auto if options.backward == "auto" else options.backward
    inputs = jax.tree.map(jnp.asarray, PoolingInputs(hidden, kernel, bias))
    rule = Max(dense=form == "dense", joint=platform == "tpu")
    pooled, positions = _pool(rule, inputs, mask, columns, dtype, options)
    if mask is not None:
        some = jnp.any(jnp.asarray(mask, bool), axis=1)[:, None]  # [B, 1]
        pooled = jnp.where(some, pooled, EXCLUDED)
    return pooled, positions


def mean_pool(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    activation: Callable[[jax.Array], jax.Array],
    top_k: int | None = None,
    columns: Sequence[int] | None = None,
    dtype: Dtype | None = None,
    options: PoolingOptions | None = None,
) -> jax.Array:
    """The mean over positions of activation(hidden @ kernel.T + bias), [B, V], float32 or wider.

    Blocks of logits are made again in the backward pass, so that this costs a third more products
    than the dense form of max pooling.

    Args:
      hidden: see `max_pool`, as for all arguments that are not listed here.
      kernel: [R, D].
      bias: [V], or None.
      mask: [B, L] or None. Rows without any position give 0.
      activation: elementwise and non-decreasing; a named function, which jit knows again.
      top_k: average only so many of the largest values of each column; None: all.
      columns: as in `max_pool`.
      dtype: as in `max_pool`.
      options: `backward` has no meaning here.

    Raises:
      UserError: as in `max_pool`, or `top_k` is not positive.
    """
    if top_k is not None and top_k < 1:
        raise UserError(
            f"pooling_top_k is {top_k}: it must be at least 1, or None for all positions."
        )
    rule = Mean(activation, top_k)
    inputs = jax.tree.map(jnp.asarray, PoolingInputs(hidden, kernel, bias))
    return _pool(rule, inputs, mask, columns, dtype, options or PoolingOptions())[0]


def _pool(
    rule: Rule,
    inputs: PoolingInputs,
    mask: jax.Array | None,
    columns: Sequence[int] | None,
    dtype: Dtype | None,
    options: PoolingOptions,
) -> tuple[jax.Array, Any]:
    """Checks the arguments, lays the work out on the mesh, and runs it."""
    chosen = consecutive(range(inputs.kernel.shape[0]) if columns is None else columns)
    _check(inputs, mask, chosen, options)
    mesh = auto_axes()
    many, asked = mesh.get(TERM_AXIS, 1), len(chosen)
    tensor = TERM_AXIS if many > 1 else None
    if tensor is not None:
        # All devices need as many columns, so columns of zeros fill the last device's up.
        inputs = _sharded(inputs, chosen, -asked % many)
        chosen = range(len(inputs.kernel))
    axes = tuple(axis for axis in ROW_AXES if mesh.get(axis, 1) > 1)
    batch, length, width = inputs.hidden.shape
    devices = int(np.prod([mesh[axis] for axis in axes]))
    if batch % devices:
        axes, devices = (), 1  # a few rows, to draw parameters with: all of them on every device
    sharded = WIDTH_AXIS in axes and width % mesh[WIDTH_AXIS] == 0
    mine = len(chosen) // (mesh[tensor] if tensor else 1)
    pooling = "max" if isinstance(rule, Max) else "mean"
    core = PoolingCore(
        rule=rule,
        columns=mine,
        first=chosen[0] if isinstance(chosen, range) else 0,
        block=min(options.block or block_size(batch // devices * length, pooling=pooling), mine),
        dtype=jnp.dtype(dtype or inputs.hidden.dtype),
        rows=axes,
        width=WIDTH_AXIS if sharded else None,
        tensor=tensor,
    )
    rows = None if isinstance(chosen, range) else jnp.asarray(chosen, jnp.int32)
    where = Selection(None if mask is None else jnp.asarray(mask, bool), rows)
    # Without the columns of zeros.
    return jax.tree.map(lambda x: x[:, :asked], pool(core, inputs, where))


def consecutive(columns: Sequence[int]) -> Sequence[int]:
    """The same columns, as a range where they are consecutive, else as a tuple."""
    if isinstance(columns, range) and columns.step == 1:
        return columns
    numbers = np.asarray(columns)
    if numbers.size and np.array_equal(numbers, numbers[0] + np.arange(numbers.size)):
        return range(int(numbers[0]), int(numbers[0]) + numbers.size)
    return tuple(numbers.tolist())


def block_size(
    positions: int, platform: str | None = None, pooling: Literal["max", "mean"] = "max"
) -> int:
    """Columns of a block.

    A TPU fuses the reduction of max pooling with the product, and the tiles of its derivative with
    the products that read them, unless blocks are large. Million cycles of 29,522 columns forward
    and backward, as the compiler estimates them (1,024 columns and two reductions, [256, 49, 768]
    on v5e: 23.7):

      block                         512   1,024   2,048   4,096
      v5e, [256, 49, 768]           20.1   17.8    17.3    18.1
      v5e, [256, 77, 768], masked   29.9   26.2    24.9    26.9
      v5e, [64, 256, 768], masked   27.4   24.9    23.3    25.3
      v6e, [256, 77, 768], masked           19.1    28.8    30.5
      the same, MiB of temporaries            76     683   1,304

    A GPU stores the logits, and reads and writes the gradient of the positions once per block.
    Forward and backward of [4096, 77, 768] on an H200: 192 ms and 1.7 GiB of temporaries with
    blocks of 256, 128 ms and 20.3 GiB with blocks of 8,192.

    Args:
      positions: b * L of one device.
      platform: "cpu", "gpu" or "tpu"; by default that of the mesh, see `traced_platform`.
      pooling: of the head.

    Returns:
      512 on a CPU, 1,024 of max pooling on a TPU; elsewhere the power of two from 128 to 4,096
      whose logits in float32 fill 2 GiB on a GPU, 512 MiB on a TPU.
    """
    platform = platform or traced_platform()
    if platform == "cpu":
        return CPU_BLOCK
    if platform == "tpu" and pooling == "max":
        return TPU_BLOCK
    tile = GPU_TILE_BYTES if platform == "gpu" else TPU_TILE_BYTES
    return 1 << min(max((tile // (4 * positions)).bit_length() - 1, 7), 12)


def _sharded(inputs: PoolingInputs, chosen: Sequence[int], more: int) -> PoolingInputs:
    """With a kernel of the chosen columns alone, and `more` of zeros, so that the axis of columns
    divides them."""
    kernel = inputs.kernel
    if isinstance(chosen, range):
        kernel = kernel[chosen.start : chosen.stop]
    else:
        kernel = kernel[jnp.asarray(chosen, jnp.int32)]
    if not more:
        return PoolingInputs(inputs.hidden, kernel, inputs.bias)
    bias = None if inputs.bias is None else jnp.pad(inputs.bias, (0, more))
    return PoolingInputs(inputs.hidden, jnp.pad(kernel, ((0, more), (0, 0))), bias)


def _check(
    inputs: PoolingInputs, mask: jax.Array | None, chosen: Sequence[int], options: PoolingOptions
) -> None:
    """Says what does not fit."""
    hidden, kernel = inputs.hidden.shape, inputs.kernel.shape
    if len(hidden) != 3 or len(kernel) != 2 or hidden[-1] != kernel[-1]:
        raise UserError(
            f"hidden {hidden} and kernel {kernel} do not fit: they must be [B, L, D] and [R, D]."
        )
    if mask is not None and mask.shape != hidden[:2]:
        raise UserError(f"the mask is {mask.shape}, but hidden {hidden} asks for {hidden[:2]}.")
    if not len(chosen) or min(chosen) < 0 or max(chosen) >= kernel[0]:
        raise UserError(
            f"columns must be some of the {kernel[0]} rows of the kernel, 0 to {kernel[0] - 1}."
        )
    if inputs.bias is not None and inputs.bias.shape != (len(chosen),):
        raise UserError(f"the bias is {inputs.bias.shape}, but there are {len(chosen)} columns.")
    if options.block is not None and options.block < 1:
        raise UserError(f"block is {options.block}: it must be at least 1 column, or None.")
