"""Encoding a batch in slices: the memory of one slice, the exact gradient of the whole batch.

Gradient caching ("Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") as one
differentiable function: a loop over slices keeps their representations only, and its backward pass
encodes each slice again just before the gradient of its part. A loss over the representations of
the whole batch therefore keeps all its negatives. Accumulating the gradients of a loss per slice
would lose them, so that is not offered.

What a batch norm sees of a slice is another matter: see `batch_stats` of a tower's configuration.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from big_retrieval.errors import UserError
from big_retrieval.parallel import ROWS

Params = TypeVar("Params")
Out = TypeVar("Out")
Common = TypeVar("Common")


def in_slices(
    encode: Callable[[Params, Any], tuple[Out, Common]],
    params: Params,
    rows: Any,
    microbatch: int | None,
) -> tuple[Out, Common]:
    """encode(params, rows), `microbatch` rows at a time; equal to it, and so are its gradients.

    Under a mesh (`jax.set_mesh`) every slice takes the same number of rows from each device, so no
    row changes its place.

    Args:
      encode: from parameters and arrays [b, ...] to arrays [b, ...], row by row, and to arrays
        that belong to no row: of these the mean over all slices is returned.
      params: what it is differentiated by.
      rows: arrays [B, ...].
      microbatch: rows of a slice, over all devices; None, or B, for the whole batch at once.

    Raises:
      UserError: the slices do not divide the batch, or the devices a slice.
    """
    (batch_size,) = {x.shape[0] for x in jax.tree.leaves(rows)}
    if microbatch is None or microbatch == batch_size:
        return encode(params, rows)
    shape = jax.sharding.get_abstract_mesh().shape
    groups = math.prod(shape.get(axis, 1) for axis in ROWS[0])
    if batch_size % microbatch or microbatch % groups:
        raise UserError(
            f"config.microbatch {microbatch} must divide the batch of {batch_size} and be a "
            f"multiple of the mesh's {groups} groups of rows."
        )
    count = batch_size // microbatch

    def split(x: jax.Array) -> jax.Array:  # [B, ...] -> [slices, microbatch, ...]
        # Device group g holds the batch's g-th run of rows, and takes its share of every slice from
        # that: [groups, slices, rows of a group, ...].
        x = x.reshape(groups, count, microbatch // groups, *x.shape[1:])
        return _on_rows(x.swapaxes(0, 1).reshape(count, microbatch, *x.shape[3:]))

    def join(x: jax.Array) -> jax.Array:  # [slices, microbatch, ...] -> [B, ...]
        x = _on_rows(x).reshape(count, groups, microbatch // groups, *x.shape[2:])
        return x.swapaxes(0, 1).reshape(batch_size, *x.shape[3:])

    # Inside a loop nothing can be shared between the two passes, so no barrier is needed.
    once = jax.checkpoint(encode, prevent_cse=False)
    out, common = jax.lax.map(lambda part: once(params, part), jax.tree.map(split, rows))
    return jax.tree.map(join, out), jax.tree.map(lambda x: jnp.mean(x, axis=0), common)


def _on_rows(x: jax.Array) -> jax.Array:
    """Keeps [slices, microbatch, ...] sharded over devices by its second axis."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(None, *ROWS))
