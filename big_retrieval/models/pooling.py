"""Pooled vocabulary logits without the [B, L, V] array, forward or backward.

Positions are projected onto one block of columns at a time and pooled; the block's logits are not
kept (`pooling_sweep`). On a mesh (`jax.set_mesh`), rows are sharded over data and fsdp, columns
over tensor.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.models.layers import EXCLUDED, Dtype
from big_retrieval.models.pooling_rules import Max, Mean, PoolingInputs
from big_retrieval.models.pooling_sweep import PoolingCore, pool
from big_retrieval.runtime.mesh_axes import auto_axes, axis_size
from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse.sharded import TERM_AXIS

Backward = Literal["auto", "sparse", "dense"]
CPU_BLOCK = 512
GPU_TILE_BYTES = 2**31  # of a block's [b, L, C] logits in float32: few, large kernels
TPU_TILE_BYTES = 2**29  # the same, for mean pooling
TPU_BLOCK = 1024  # for max pooling, which stores no logits on a TPU
ROW_AXES = ("data", "fsdp")  # mesh axes of the batch
WIDTH_AXIS = "fsdp"  # mesh axis that also shards D of the kernel


def max_pool(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    columns: Sequence[int] | None = None,
    dtype: Dtype | None = None,
    block: int | None = None,
    backward: Backward = "auto",
) -> tuple[jax.Array, jax.Array]:
    """Computes the largest logit per column, max over l of (hidden @ kernel.T + bias)[b, l, v].

    A non-decreasing activation can be applied after the maximum. Among equal logits, the first
    position gets the full gradient (JAX's maximum splits it). If the mesh does not divide B, every
    device computes the whole batch. If it does not divide V, columns of zeros are added.

    Args:
      hidden: [B, L, D].
      kernel: [R, D].
      bias: [V], or None.
      mask: [B, L], true (or not 0) at the positions to pool; None for all. The other positions of
        `hidden` must be finite.
      columns: rows of the kernel that are the V columns, in this order; None for all R. Consecutive
        rows need no look-up.
      dtype: type of the operands, by default the type of `hidden`. Products accumulate in float32
        or wider.
      block: number of columns per block; None for `block_size`.
      backward: "sparse" or "dense" (see `pooling_rules`); "auto" is sparse on a CPU only.

    Returns:
      pooled: [B, V], float32 or wider; -1e30 without a gradient in rows without any position.
      positions: of the maxima, uint8 or wider, [B, V]; arbitrary in such rows.

    Raises:
      UserError: shapes do not fit, or a column is not a row of the kernel.
    """
    platform = traced_platform()
    dense = backward == "dense" or (backward == "auto" and platform != "cpu")
    rule = Max(dense, joint=platform == "tpu")
    inputs = PoolingInputs(hidden, kernel, bias, mask)
    pooled, positions = _pool(rule, inputs, columns, dtype, block)
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
    block: int | None = None,
) -> jax.Array:
    """Computes the mean over positions of activation(hidden @ kernel.T + bias), [B, V].

    Arguments and types are as in `max_pool`; rows without any position give 0. The backward pass
    computes blocks of logits again: a third more products than the dense form of max pooling.

    Args:
      activation: elementwise and non-decreasing. A new lambda per call makes jit compile again.
      top_k: average only this number of the largest values per column, at least 1; None for all.
    """
    inputs = PoolingInputs(hidden, kernel, bias, mask)
    return _pool(Mean(activation, top_k), inputs, columns, dtype, block)[0]


def _pool(
    rule: Max | Mean,
    inputs: PoolingInputs,
    columns: Sequence[int] | None,
    dtype: Dtype | None,
    block: int | None,
) -> tuple[jax.Array, Any]:
    inputs = jax.tree.map(jnp.asarray, inputs)
    selected = consecutive(range(inputs.kernel.shape[0]) if columns is None else columns)
    _check(inputs, selected)
    mesh = auto_axes()
    shards, count = mesh.get(TERM_AXIS, 1), len(selected)
    if shards > 1:
        # All devices need the same number of columns: the last device gets columns of zeros.
        inputs = _select_rows(inputs, selected, -count % shards)
        selected = range(len(inputs.kernel))
    axes = tuple(axis for axis in ROW_AXES if mesh.get(axis, 1) > 1)
    batch, length, width = inputs.hidden.shape
    if batch % axis_size(axes):
        axes = ()  # e.g. the few rows of an initialization: every device computes all of them
    sharded = WIDTH_AXIS in axes and width % mesh[WIDTH_AXIS] == 0
    local, positions = len(selected) // shards, batch // axis_size(axes) * length
    pooling = "max" if isinstance(rule, Max) else "mean"
    core = PoolingCore(
        rule=rule,
        columns=local,
        first=selected[0] if isinstance(selected, range) else 0,
        block=min(block or block_size(positions, pooling=pooling), local),
        dtype=jnp.dtype(dtype or inputs.hidden.dtype),
        rows=axes,
        width=WIDTH_AXIS if sharded else None,
        tensor=TERM_AXIS if shards > 1 else None,
    )
    rows = None if isinstance(selected, range) else jnp.asarray(selected, jnp.int32)
    mask = None if inputs.mask is None else inputs.mask.astype(bool)
    inputs = dataclasses.replace(inputs, mask=mask, rows=rows)
    # Without the columns of zeros.
    return jax.tree.map(lambda x: x[:, :count], pool(core, inputs))


def consecutive(columns: Sequence[int]) -> Sequence[int]:
    """Returns the columns as a range if they are consecutive, else as a tuple."""
    if isinstance(columns, range) and columns.step == 1:
        return columns
    rows = np.asarray(columns)
    if rows.size and np.array_equal(rows, rows[0] + np.arange(rows.size)):
        return range(int(rows[0]), int(rows[0]) + rows.size)
    return tuple(rows.tolist())


def block_size(
    positions: int, platform: str | None = None, pooling: Literal["max", "mean"] = "max"
) -> int:
    """Returns the number of columns per block: 512 on a CPU, 1,024 for max pooling on a TPU.

    Otherwise, it is the power of two from 128 to 4,096 whose logits in float32 fill 2 GiB on a GPU,
    512 MiB on a TPU.

    On a TPU, XLA fuses max pooling and its derivative with their products, unless blocks are large:
    for 29,522 columns of [256, 77, 768] on v6e, both passes take 19 million cycles with blocks of
    1,024 and 29 million with 2,048 (compiler's estimate). A GPU stores the logits, and reads and
    writes the gradient of `hidden` once per block: [4096, 77, 768] on an H200 takes 192 ms with
    blocks of 256 and 128 ms with 8,192 (20 GiB of temporaries).

    Args:
      positions: b * L of one device.
      platform: "cpu", "gpu" or "tpu"; None for `traced_platform`.
    """
    platform = platform or traced_platform()
    if platform == "cpu":
        return CPU_BLOCK
    if platform == "tpu" and pooling == "max":
        return TPU_BLOCK
    tile = GPU_TILE_BYTES if platform == "gpu" else TPU_TILE_BYTES
    return 1 << min(max((tile // (4 * positions)).bit_length() - 1, 7), 12)


def _select_rows(inputs: PoolingInputs, columns: Sequence[int], more: int) -> PoolingInputs:
    kernel, bias = inputs.kernel, inputs.bias
    if isinstance(columns, range):
        kernel = kernel[columns.start : columns.stop]
    else:
        kernel = kernel[jnp.asarray(columns, jnp.int32)]
    if more:
        bias = None if bias is None else jnp.pad(bias, (0, more))
        kernel = jnp.pad(kernel, ((0, more), (0, 0)))
    return dataclasses.replace(inputs, kernel=kernel, bias=bias)


def _check(inputs: PoolingInputs, columns: Sequence[int]) -> None:
    rows = len(inputs.kernel)
    if not len(columns) or min(columns) < 0 or max(columns) >= rows:
        raise UserError(f"columns must be some of the {rows} rows of the kernel, 0 to {rows - 1}.")
    batch, length, width = inputs.hidden.shape
    expected = {"kernel": (rows, width), "bias": (len(columns),), "mask": (batch, length)}
    for name, shape in expected.items():
        array = getattr(inputs, name)
        if array is not None and array.shape != shape:
            raise UserError(
                f"The {name} of a pooling has the shape {array.shape}. Hidden vectors "
                f"{inputs.hidden.shape} and {len(columns)} columns need {shape}."
            )
