"""The blocked loop over columns, forward and backward, on one device or on a mesh.

The last block overlaps the block before, so that it is full and the kernel is never padded or
copied. Shared columns count once.

On a mesh, every device computes its rows and columns. The kernel is gathered over the axis of its
width. The gradient of the kernel is summed over the axes of the rows, the gradient of the positions
over the axis of the columns. The derivative is defined outside of `shard_map`, so that JAX never
transposes a collective.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.models.layers import wide
from big_retrieval.models.pooling_rules import Max, Mean, PoolingInputs
from big_retrieval.runtime.mesh_axes import on_each_device


@dataclasses.dataclass(frozen=True)
class PoolingCore:
    """Static settings of a pooling."""

    rule: Max | Mean
    columns: int  # V on one device
    first: int  # the kernel's row of the first column, if rows are consecutive
    block: int  # columns of a block
    dtype: Any  # of the operands
    rows: tuple[str, ...] = ()  # mesh axes of the rows; empty on one device
    width: str | None = None  # axis of `rows` that also shards the kernel's D, or None
    tensor: str | None = None  # mesh axis of the columns, or None

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.columns // self.block)

    @property
    def entering(self) -> PoolingInputs:
        """Layout of the inputs on the mesh."""
        rows: Any = P(self.rows or None)
        columns: Any = P(self.tensor)
        replicated: Any = P()
        return PoolingInputs(rows, columns, columns, rows, replicated)

    @property
    def pooled(self) -> P:  # [B, V]
        """Layout of [B, V] arrays."""
        return P(self.rows or None, self.tensor)

    def operands(self, inputs: PoolingInputs) -> PoolingInputs:
        """Casts the operands; a kernel that is not gathered is cast block by block instead."""
        kernel = inputs.kernel.astype(self.dtype) if self.width else inputs.kernel
        hidden = inputs.hidden.astype(self.dtype)
        return dataclasses.replace(inputs, hidden=hidden, kernel=kernel)

    def take(self, x: jax.Array, index: jax.Array) -> jax.Array:
        """Reads a block of the last axis, [..., V] -> [..., C]."""
        return jax.lax.dynamic_slice_in_dim(x, self.start(index), self.block, axis=-1)

    def put(self, x: jax.Array, block: jax.Array, index: jax.Array) -> jax.Array:
        """Writes a block of the last axis."""
        return jax.lax.dynamic_update_slice_in_dim(x, block, self.start(index), axis=-1)

    def start(self, index: jax.Array) -> jax.Array:
        """Returns the first column of a block."""
        return jnp.minimum(index * self.block, self.columns - self.block)

    def inputs_of(self, inputs: PoolingInputs, index: jax.Array) -> PoolingInputs:
        """Returns the inputs of a block."""
        if inputs.rows is None:
            start = self.first + self.start(index)
            kernel = jax.lax.dynamic_slice_in_dim(inputs.kernel, start, self.block)  # [C, D]
        else:
            kernel = inputs.kernel[self.take(inputs.rows, index)]  # [C, D]
        bias = None if inputs.bias is None else self.take(inputs.bias, index)
        return PoolingInputs(inputs.hidden, kernel.astype(self.dtype), bias, inputs.mask)

    def add(
        self, x: jax.Array, block: jax.Array, rows: jax.Array | None, index: jax.Array
    ) -> jax.Array:
        """Adds a block's [C, D] to rows of the kernel's gradient [R, D]."""
        if rows is not None:
            return x.at[self.take(rows, index)].add(block)
        start = self.first + self.start(index)
        block = block + jax.lax.dynamic_slice_in_dim(x, start, self.block)
        return jax.lax.dynamic_update_slice_in_dim(x, block, start, axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def pool(core: PoolingCore, inputs: PoolingInputs) -> tuple[jax.Array, Any]:
    """Returns all columns pooled, [B, V], and the rule's saved array, [B, V] or None."""
    return _forward(core, inputs)[0]  # the saved array has no gradient


def _forward(core: PoolingCore, inputs: PoolingInputs) -> tuple[tuple[jax.Array, Any], Any]:
    local = functools.partial(_local_forward, core)
    run = on_each_device(local, (core.entering,), core.pooled, check=False)
    pooled, saved = run(core.operands(inputs))
    return (pooled, saved), (inputs, saved)


def _backward(
    core: PoolingCore, residuals: Any, grads: tuple[jax.Array, Any]
) -> tuple[PoolingInputs]:
    inputs, saved = residuals
    in_specs = (core.entering, core.pooled, core.pooled)
    rows: Any = P(core.rows or None)
    # The kernel is gathered along D; its gradient has the layout of the parameter.
    kernel: Any = P(core.tensor, core.width)
    bias: Any = P(core.tensor)
    local = functools.partial(_local_backward, core)
    run = on_each_device(local, in_specs, PoolingInputs(rows, kernel, bias), check=False)
    d = run(core.operands(inputs), saved, grads[0])
    d_bias = None if inputs.bias is None else d.bias.astype(inputs.bias.dtype)
    d_hidden, d_kernel = d.hidden.astype(inputs.hidden.dtype), d.kernel.astype(inputs.kernel.dtype)
    return (PoolingInputs(d_hidden, d_kernel, d_bias),)


pool.defvjp(_forward, _backward)


def _local_forward(core: PoolingCore, inputs: PoolingInputs) -> tuple[jax.Array, Any]:
    def pool_block(index: jax.Array) -> Any:
        return core.rule.forward(core.inputs_of(inputs, index))

    def step(index: Any, out: Any) -> Any:
        return jax.tree.map(lambda x, block: core.put(x, block, index), out, pool_block(index))

    types = jax.eval_shape(lambda: pool_block(jnp.int32(0)))  # computes nothing
    rows = inputs.hidden.shape[0]
    start = jax.tree.map(lambda x: jnp.zeros((rows, core.columns), x.dtype), types)
    return jax.lax.fori_loop(0, core.blocks, step, start)


def _local_backward(
    core: PoolingCore, inputs: PoolingInputs, saved: Any, g: jax.Array
) -> PoolingInputs:
    def step(index: Any, total: PoolingInputs) -> PoolingInputs:
        # False for columns of the block before, whose gradient has been added already.
        fresh = core.start(index) + jnp.arange(core.block) >= index * core.block  # [C]
        block = core.inputs_of(inputs, index)
        block_saved = jax.tree.map(lambda x: core.take(x, index), saved)
        block_g = jnp.where(fresh, core.take(g, index), 0)  # [b, C]
        more = core.rule.backward(block, block_saved, block_g, total.hidden)
        kernel = core.add(total.kernel, more.kernel, inputs.rows, index)
        bias = core.put(total.bias, core.take(total.bias, index) + more.bias, index)
        return PoolingInputs(more.hidden, kernel, bias)

    dtype = wide(core.dtype)
    start = PoolingInputs(
        jnp.zeros(inputs.hidden.shape, dtype),
        jnp.zeros(inputs.kernel.shape, dtype),
        jnp.zeros(core.columns, dtype),
    )
    return _reduce(core, jax.lax.fori_loop(0, core.blocks, step, start))


def _reduce(core: PoolingCore, grads: PoolingInputs) -> PoolingInputs:
    """Sums over the devices: rows for the kernel and the bias, columns for the positions."""
    hidden, kernel, bias = grads.hidden, grads.kernel, grads.bias
    if core.tensor is not None:
        hidden = jax.lax.psum(hidden, core.tensor)
    if core.width is not None:
        kernel = jax.lax.psum_scatter(kernel, core.width, scatter_dimension=1, tiled=True)
    other_rows = tuple(axis for axis in core.rows if axis != core.width)
    if other_rows:
        kernel = jax.lax.psum(kernel, other_rows)
    if core.rows:
        bias = jax.lax.psum(bias, core.rows)
    return PoolingInputs(hidden, kernel, bias)
