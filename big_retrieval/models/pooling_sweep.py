"""The blocked loop over columns, forward and backward, on one device or on a mesh.

The last block starts early enough to be whole, so that the kernel is never padded or copied; the
columns that it shares with the block before do not count twice.

On a mesh every device works on its own rows and columns. The derivative is written outside
`shard_map`, which therefore never has to transpose a collective: the kernel is gathered over the
axis of its width as it enters, its gradient is summed over the axes of the rows, and that of the
positions over the axis of the columns.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.models.layers import wide
from big_retrieval.models.pooling_rules import Gradient, PoolingInputs, Rule
from big_retrieval.runtime.mesh_axes import auto_axes


@flax.struct.dataclass
class Selection:
    """What takes part; nothing here has a gradient.

    Attributes:
      mask: bool [B, L], the positions that take part; None: all.
      rows: int32 [V], the kernel's row of every column; None: consecutive ones.
    """

    mask: jax.Array | None
    rows: jax.Array | None


@dataclasses.dataclass(frozen=True)
class PoolingCore:
    """The static part of a computation.

    Attributes:
      rule: how a block is pooled.
      columns: V on one device.
      first: the kernel's row of the first column, where rows are consecutive.
      block: columns of a block.
      dtype: of the operands.
      rows: mesh axes that rows are sharded over; empty on one device.
      width: the one of them that the kernel's D is sharded over, or None.
      tensor: mesh axis that columns are sharded over, or None.
    """

    rule: Rule
    columns: int
    first: int
    block: int
    dtype: Any
    rows: tuple[str, ...] = ()
    width: str | None = None
    tensor: str | None = None

    @property
    def blocks(self) -> int:
        """How many there are."""
        return -(-self.columns // self.block)

    @property
    def entering(self) -> tuple[PoolingInputs, Selection]:
        """How inputs and selection lie on the mesh."""
        rows: Any = P(self.rows or None)
        columns: Any = P(self.tensor)
        whole: Any = P()
        return PoolingInputs(rows, columns, columns), Selection(rows, whole)

    @property
    def pooled(self) -> P:
        """How [B, V] arrays lie."""
        return P(self.rows or None, self.tensor)

    def run(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        """`function` of (core, ...) on every device's own part; as it is without a mesh."""
        local, axes = functools.partial(function, self), set(auto_axes())
        if not axes:
            return local
        specs: Any = {"in_specs": in_specs, "out_specs": out_specs}
        return jax.shard_map(local, **specs, axis_names=axes, check_vma=False)

    def operands(self, inputs: PoolingInputs) -> PoolingInputs:
        """In their type; a kernel that does not travel is cast block by block instead."""
        kernel = inputs.kernel.astype(self.dtype) if self.width else inputs.kernel
        return PoolingInputs(inputs.hidden.astype(self.dtype), kernel, inputs.bias)

    def take(self, x: jax.Array, number: jax.Array) -> jax.Array:
        """A block of the last axis, [..., V] -> [..., C]."""
        return jax.lax.dynamic_slice_in_dim(x, self.start(number), self.block, axis=-1)

    def put(self, x: jax.Array, part: jax.Array, number: jax.Array) -> jax.Array:
        """Writes a block of the last axis."""
        return jax.lax.dynamic_update_slice_in_dim(x, part, self.start(number), axis=-1)

    def start(self, number: jax.Array) -> jax.Array:
        """The first column of a block."""
        return jnp.minimum(number * self.block, self.columns - self.block)

    def part(self, inputs: PoolingInputs, selection: Selection, number: jax.Array) -> PoolingInputs:
        """What a block depends on."""
        if selection.rows is None:
            start = self.first + self.start(number)
            kernel = jax.lax.dynamic_slice_in_dim(inputs.kernel, start, self.block)  # [C, D]
        else:
            kernel = inputs.kernel[self.take(selection.rows, number)]  # [C, D]
        bias = None if inputs.bias is None else self.take(inputs.bias, number)
        return PoolingInputs(inputs.hidden, kernel.astype(self.dtype), bias)

    def add(
        self, x: jax.Array, part: jax.Array, selection: Selection, number: jax.Array
    ) -> jax.Array:
        """Adds a block's [C, D] to rows of the kernel's gradient [R, D]."""
        if selection.rows is not None:
            return x.at[self.take(selection.rows, number)].add(part)
        start = self.first + self.start(number)
        part = part + jax.lax.dynamic_slice_in_dim(x, start, self.block)
        return jax.lax.dynamic_update_slice_in_dim(x, part, start, axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def pool(core: PoolingCore, inputs: PoolingInputs, selection: Selection) -> tuple[jax.Array, Any]:
    """Pools all columns.

    Returns:
      Pooled [B, V], and what the rule saves, [B, V] or None; it has no gradient.
    """
    return _forward(core, inputs, selection)[0]


def _forward(
    core: PoolingCore, inputs: PoolingInputs, selection: Selection
) -> tuple[tuple[jax.Array, Any], Any]:
    run = core.run(_local_forward, core.entering, core.pooled)
    pooled, saved = run(core.operands(inputs), selection)
    return (pooled, saved), (inputs, selection, saved)


def _backward(
    core: PoolingCore, residuals: Any, grads: tuple[jax.Array, Any]
) -> tuple[PoolingInputs, None]:
    inputs, selection, saved = residuals
    in_specs = (*core.entering, core.pooled, core.pooled)
    rows: Any = P(core.rows or None)
    # The kernel came in whole along D; its gradient leaves in the layout of the parameter.
    kernel: Any = P(core.tensor, core.width)
    bias: Any = P(core.tensor)
    leaving = Gradient(rows, kernel, bias)
    run = core.run(_local_backward, in_specs, leaving)
    found = run(core.operands(inputs), selection, saved, grads[0])
    out = PoolingInputs(found.hidden, found.kernel, None if inputs.bias is None else found.bias)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), out, inputs), None


pool.defvjp(_forward, _backward)


def _local_forward(
    core: PoolingCore, inputs: PoolingInputs, selection: Selection
) -> tuple[jax.Array, Any]:
    """What one device does."""

    def block(number: Any, found: Any) -> Any:
        part = core.rule.forward(core.part(inputs, selection, number), selection.mask)
        return jax.tree.map(lambda x, y: core.put(x, y, number), found, part)

    def first() -> Any:
        return core.rule.forward(core.part(inputs, selection, jnp.int32(0)), selection.mask)

    # Computes nothing: only the types of what the rule gives and saves are asked for.
    shapes = jax.eval_shape(first)
    rows = inputs.hidden.shape[0]
    start = jax.tree.map(lambda x: jnp.zeros((rows, core.columns), x.dtype), shapes)
    return jax.lax.fori_loop(0, core.blocks, block, start)


def _local_backward(
    core: PoolingCore, inputs: PoolingInputs, selection: Selection, saved: Any, g: jax.Array
) -> Gradient:
    """What one device does for the gradients."""

    def block(number: Any, found: Gradient) -> Gradient:
        # False for columns of the block before, whose gradient has been added already.
        fresh = core.start(number) + jnp.arange(core.block) >= number * core.block  # [C]
        part = core.part(inputs, selection, number)
        mine = jax.tree.map(lambda x: core.take(x, number), saved)
        share = jnp.where(fresh, core.take(g, number), 0)  # [b, C]
        more = core.rule.backward(part, selection.mask, mine, share, found.hidden)
        kernel = core.add(found.kernel, more.kernel, selection, number)
        bias = core.put(found.bias, core.take(found.bias, number) + more.bias, number)
        return Gradient(more.hidden, kernel, bias)

    dtype = wide(core.dtype)
    start = Gradient(
        jnp.zeros(inputs.hidden.shape, dtype),
        jnp.zeros(inputs.kernel.shape, dtype),
        jnp.zeros(core.columns, dtype),
    )
    return _reduce(core, jax.lax.fori_loop(0, core.blocks, block, start))


def _reduce(core: PoolingCore, found: Gradient) -> Gradient:
    """Sums over the devices: rows for the kernel and the bias, columns for the positions."""
    hidden, kernel, bias = found.hidden, found.kernel, found.bias
    if core.tensor is not None:
        hidden = jax.lax.psum(hidden, core.tensor)
    if core.width is not None:
        kernel = jax.lax.psum_scatter(kernel, core.width, scatter_dimension=1, tiled=True)
    # The scatter above has summed over its own axis of rows; the others are left.
    others = tuple(axis for axis in core.rows if axis != core.width)
    if others:
        kernel = jax.lax.psum(kernel, others)
    if core.rows:
        bias = jax.lax.psum(bias, core.rows)
    return Gradient(hidden, kernel, bias)
