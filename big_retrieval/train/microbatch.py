"""Encoding a batch in slices: the memory of one slice, the exact gradient of the whole batch.

Gradient caching ("Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") as one
differentiable function: a loop over slices keeps only their representations, and its backward pass
encodes each slice again before computing its gradient. The loss sees the representations of the
whole batch, so it keeps all negatives; a sum of the slices' losses would not.

On a mesh with several groups of devices along `data`, each group loops over its own slices
(`shard_map`) and adds their gradients in float32. The groups then exchange one sum per step. Batch
statistics need all groups, so models with batch norms loop under automatic sharding, where every
slice exchanges its gradients. See `batch_stats` in a tower's configuration.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.errors import UserError
from big_retrieval.models.layers import wide
from big_retrieval.parallel import ROWS
from big_retrieval.runtime.mesh_axes import auto_axes

GROUPS = "data"  # mesh axis whose groups of devices loop over their own slices
Out = TypeVar("Out")
Common = TypeVar("Common")
Encode = Callable[[Any, Any, Any], tuple[Out, Common]]


def in_slices(
    encode: Encode[Out, Common],
    params: Any,
    shared: Any,
    rows: Any,
    microbatch: int | None,
    *,
    has_common: bool = True,
) -> tuple[Out, Common]:
    """Encodes `microbatch` rows at a time; value and gradients equal encode(params, shared, rows).

    Under a mesh (`jax.set_mesh`) every slice takes the same number of rows from each device, so
    that no row moves to another device.

    Args:
      encode: function (params, shared, arrays [b, ...]) -> (arrays [b, ...], common arrays without
        an axis of rows). The result has the mean of the common arrays over the slices.
      shared: arrays that every slice reads; they have no gradient.
      microbatch: rows of a slice, over all devices; None, or B, for the whole batch at once.
      has_common: False if `encode` returns no common arrays, and no row depends on other rows of
        its slice. Only then, groups exchange one sum of gradients per step.

    Raises:
      UserError: slices do not divide the batch, or the groups of rows on the mesh do not divide a
        slice.
    """
    (batch_size,) = {x.shape[0] for x in jax.tree.leaves(rows)}
    if microbatch is None or microbatch == batch_size:
        return encode(params, shared, rows)
    groups = _row_groups()
    if batch_size % microbatch or microbatch % groups:
        raise UserError(
            f"config.microbatch {microbatch} must divide the batch of {batch_size}, and the mesh's "
            f"{groups} groups of rows must divide it."
        )
    count = batch_size // microbatch
    if auto_axes().get(GROUPS, 1) > 1 and not has_common:
        return _in_groups(encode, count, params, shared, rows)
    # XLA cannot merge the two passes of a loop, so `jax.checkpoint` needs no barrier against it.
    once = jax.checkpoint(encode, prevent_cse=False)
    out, common = jax.lax.map(
        lambda rows_slice: once(params, shared, rows_slice), _split(rows, count)
    )
    return _join_slices(out), jax.tree.map(lambda x: jnp.mean(x, axis=0), common)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_groups(encode: Encode[Any, Any], count: int, params: Any, shared: Any, rows: Any) -> Any:
    """Computes `in_slices` with `count` slices per group; `_backward` is its derivative."""
    return _forward(encode, count, params, shared, rows)[0]


def _forward(encode: Encode[Any, Any], count: int, params: Any, shared: Any, rows: Any) -> Any:
    def local(params: Any, shared: Any, rows: Any) -> Any:
        out, common = jax.lax.map(
            lambda rows_slice: encode(params, shared, rows_slice), _split(rows, count)
        )
        if jax.tree.leaves(common):
            raise ValueError("encode returns common arrays. Set has_common=True.")
        return _join_slices(out), common

    run = _on_groups(local, (P(), P(), P(GROUPS)), (P(GROUPS), P()))
    return run(params, shared, rows), (params, shared, rows)


def _backward(encode: Encode[Any, Any], count: int, saved: Any, grads: Any) -> Any:
    params, _, rows = saved

    def local(params: Any, shared: Any, rows: Any, grads: list[jax.Array]) -> Any:
        def add(total: Any, piece: tuple[Any, list[jax.Array]]) -> tuple[Any, list[jax.Array]]:
            rows_slice, grads = piece

            def floats_of(params: Any, values: list[jax.Array]) -> list[jax.Array]:
                return _floats(encode(params, shared, _with_floats(rows_slice, values)))

            pullback = jax.vjp(floats_of, params, _floats(rows_slice))[1]
            by_params, by_rows = pullback(grads)
            return jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, by_params), by_rows

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x.dtype)), params)
        pieces = _split(rows, count), _split(grads, count)
        # The last slice first, as in the derivative of a loop.
        total, by_rows = jax.lax.scan(add, zeros, pieces, reverse=True)
        return jax.lax.psum(total, GROUPS), _join_slices(by_rows)

    run = _on_groups(local, (P(), P(), P(GROUPS), P(GROUPS)), (P(), P(GROUPS)))
    total, by_rows = run(*saved, _floats(grads))
    total = jax.tree.map(lambda x, like: x.astype(like.dtype), total, params)
    # The gradient of integers is None.
    remaining = iter(by_rows)
    return total, None, jax.tree.map(lambda x: next(remaining) if _is_float(x) else None, rows)


_in_groups.defvjp(_forward, _backward)


def _is_float(x: Any) -> bool:
    """Returns True if an array has a gradient."""
    return jnp.issubdtype(x.dtype, np.inexact)


def _floats(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if _is_float(x)]


def _with_floats(tree: Any, values: list[Any]) -> Any:
    """Returns `tree` with other floats, in the order of `_floats`."""
    remaining = iter(values)
    return jax.tree.map(lambda x: next(remaining) if _is_float(x) else x, tree)


def _on_groups(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Runs a function once per group along `data`; the other mesh axes stay automatic."""

    def local(*arrays: Any) -> Any:
        with parallel.without_axis(GROUPS):
            return function(*arrays)

    # With check_vma, every loop in a tower would have to start from arrays marked as varying.
    options: Any = {"axis_names": {GROUPS}, "check_vma": False}
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, **options)


def _row_groups() -> int:
    """Returns the number of device groups that rows are divided over."""
    return math.prod(auto_axes().get(axis, 1) for axis in ROWS[0])


def _split(tree: Any, count: int) -> Any:
    """Reshapes [B, ...] to [slices, microbatch, ...]."""
    groups = _row_groups()

    def split(x: jax.Array) -> jax.Array:
        # Device group g holds the g-th part of the batch, and each slice takes rows of all groups:
        # [groups, slices, rows of a group, ...].
        size = x.shape[0] // count
        x = x.reshape(groups, count, size // groups, *x.shape[1:])
        return _on_rows(x.swapaxes(0, 1).reshape(count, size, *x.shape[3:]))

    return jax.tree.map(split, tree)


def _join_slices(tree: Any) -> Any:
    """Reshapes [slices, microbatch, ...] to [B, ...]."""
    groups = _row_groups()

    def join(x: jax.Array) -> jax.Array:
        count, size = x.shape[:2]
        x = _on_rows(x).reshape(count, groups, size // groups, *x.shape[2:])
        return _on_rows(x.swapaxes(0, 1).reshape(count * size, *x.shape[3:]), 0)

    return jax.tree.map(join, tree)


def _on_rows(x: jax.Array, axis: int = 1) -> jax.Array:
    """Shards the axis of rows, e.g. of [slices, microbatch, ...], over the devices."""
    axes = auto_axes()
    if not axes:
        return x
    rows = tuple(name for name in ROWS[0] if name in axes)
    return jax.lax.with_sharding_constraint(x, P(*(None,) * axis, rows))
