"""Functions of lexical representations [n, V] that are sharded over the devices of a mesh.

Rows are sharded over the axes data and fsdp, terms over tensor. XLA would gather all rows to select
terms: it does not know that rows are independent, or that the largest terms of a row are among the
largest terms of its shards. These functions therefore define the work of each device. Gradients are
defined outside of `shard_map`, so that JAX never transposes a collective.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse import products

TERM_AXIS = "tensor"


def term_axis() -> str | None:
    """Returns the axis of the current mesh that terms are sharded over, or None."""
    mesh = jax.sharding.get_abstract_mesh().shape
    return TERM_AXIS if mesh.get(TERM_AXIS, 1) > 1 else None


def pad_terms(x: jax.Array, axis: str | None, value: float = 0, lanes: int = 1) -> jax.Array:
    """Pads V so that every device of a mesh axis, if any, has a multiple of `lanes` terms."""
    devices = 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]
    padding = -x.shape[-1] % (lanes * devices)
    widths = [(0, 0)] * (x.ndim - 1) + [(0, padding)]
    return jnp.pad(x, widths, constant_values=value) if padding else x


def terms_here(terms: jax.Array, width: int, axis: str | None) -> jax.Array:
    """Converts terms to indices into this device's `width` terms; called inside `shard_map`.

    Terms of other devices become -1. `axis` None means that every device has all terms.
    """
    if axis is None:
        return terms
    local = terms - jax.lax.axis_index(axis) * width
    return jnp.where((terms >= 0) & (local >= 0) & (local < width), local, -1)


def by_rows(function: Callable[..., Any], *arrays: Any) -> Any:
    """Applies a function of independent rows on each device to the rows of the device.

    Args:
      function: maps arrays [n, ...] or None to arrays [n, ...], without collectives.
      *arrays: rows sharded over the axes data and fsdp of the current mesh, if any.
    """
    (rows,) = {x.shape[0] for x in jax.tree.leaves(arrays)}
    axes = _row_axes(rows)
    if not axes:
        return function(*arrays)
    return _on_devices(function, P(axes), P(axes))(*arrays)


def top_terms(embeddings: jax.Array, top_k: int) -> jax.Array:
    """Returns the `top_k` terms with the largest values of each row [n, V], int32 [n, top_k].

    Values descend; among equal values, the lower term is first. If terms are sharded, every device
    sends only its `top_k` largest terms.
    """
    if not top_k:
        return jnp.zeros((len(embeddings), 0), jnp.int32)
    embeddings, axis = jax.lax.stop_gradient(embeddings), term_axis()
    if axis is None:
        return by_rows(functools.partial(_local_top_terms, top_k=top_k), embeddings)
    rows = _row_axes(len(embeddings)) or None
    # -inf, so that a padding column is never among the largest terms.
    merged = functools.partial(_strongest_of_all, top_k=top_k, axis=axis)
    return _on_devices(merged, P(rows, axis), P(rows))(pad_terms(embeddings, axis, -jnp.inf))


def _local_top_terms(embeddings: jax.Array, top_k: int) -> jax.Array:
    return jax.lax.top_k(embeddings, top_k)[1].astype(jnp.int32)


def _strongest_of_all(embeddings: jax.Array, top_k: int, axis: str) -> jax.Array:
    """Gathers the largest terms of all devices, in their order, and selects from them."""
    width = embeddings.shape[-1]
    local = _local_top_terms(embeddings, min(top_k, width))
    values = jnp.take_along_axis(embeddings, local, axis=1)
    terms = local + jax.lax.axis_index(axis) * width
    values, terms = (jax.lax.all_gather(x, axis, axis=1, tiled=True) for x in (values, terms))
    return jnp.take_along_axis(terms, _local_top_terms(values, top_k), axis=1)


def gather_terms(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
    """Returns the values [n, K] of rows [n, V] at terms int32 [n, K]; 0 at -1."""
    axis = term_axis()
    if axis is None:
        return by_rows(take_locally, embeddings, terms)
    return _take_sharded(pad_terms(embeddings, axis), terms)


@jax.custom_vjp
def take_locally(rows: jax.Array, terms: jax.Array) -> jax.Array:
    """As `gather_terms`, for the rows [n, V] of one device; the gradient is `dense_locally`."""
    values = jnp.take_along_axis(rows, jnp.maximum(terms, 0), axis=1)
    return jnp.where(terms >= 0, values, 0)


def _take_locally_forward(rows: jax.Array, terms: jax.Array) -> tuple[jax.Array, Any]:
    return take_locally(rows, terms), (terms, rows.shape[1])


def _take_locally_backward(residuals: Any, grads: jax.Array) -> tuple[jax.Array, None]:
    terms, width = residuals
    return dense_locally(grads, terms, width), None


take_locally.defvjp(_take_locally_forward, _take_locally_backward)


@jax.custom_vjp
def _take_sharded(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
    """As `gather_terms`, for terms that are sharded over the mesh."""
    rows = _row_axes(len(embeddings)) or None

    def local(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
        values = take_locally(embeddings, terms_here(terms, embeddings.shape[-1], TERM_AXIS))
        # One device has each term; the other devices add 0.
        return jax.lax.psum(values, TERM_AXIS)

    return _on_devices(local, (P(rows, TERM_AXIS), P(rows)), P(rows))(embeddings, terms)


def _take_forward(embeddings: jax.Array, terms: jax.Array) -> tuple[jax.Array, Any]:
    return _take_sharded(embeddings, terms), (terms, embeddings.shape[-1])


def _take_backward(residuals: Any, grads: jax.Array) -> tuple[jax.Array, None]:
    terms, padded = residuals
    width = padded // jax.sharding.get_abstract_mesh().shape[TERM_AXIS]
    rows = _row_axes(len(terms)) or None

    def local(grads: jax.Array, terms: jax.Array) -> jax.Array:
        return dense_locally(grads, terms_here(terms, width, TERM_AXIS), width)

    return _on_devices(local, (P(rows), P(rows)), P(rows, TERM_AXIS))(grads, terms), None


_take_sharded.defvjp(_take_forward, _take_backward)


def wide(function: Callable[..., jax.Array], width: int, *arrays: jax.Array) -> jax.Array:
    """Converts sparse rows to dense rows [n, width]; each device computes its rows and terms.

    Args:
      function: maps `arrays` and `width` to [n, width], without collectives.
      *arrays: [n, K]; the last one has terms, int32, -1 for none.
    """
    axis = term_axis()
    if axis is None:
        return by_rows(functools.partial(function, width=width), *arrays)
    local_width = -(-width // jax.sharding.get_abstract_mesh().shape[axis])
    rows = P(_row_axes(len(arrays[-1])) or None)

    def local(*arrays: jax.Array) -> jax.Array:
        terms = terms_here(arrays[-1], local_width, axis)
        return function(*arrays[:-1], terms, width=local_width)

    return _on_devices(local, rows, P(*rows, axis))(*arrays)[:, :width]


def dense_locally(values: jax.Array, terms: jax.Array, width: int) -> jax.Array:
    """Adds up values at terms [n, K] (-1 for none) to rows [n, width].

    TPUs use a product (see `products`), other platforms a scatter.
    """
    if traced_platform() == "tpu":
        return products.dense(values, terms, width)
    # -1 would be the last column; `width` is out of range and dropped.
    columns = jnp.where(terms < 0, width, terms)
    rows = jnp.arange(len(columns))[:, None]
    out = jnp.zeros((len(columns), width), values.dtype)
    return out.at[rows, columns].add(values, mode="drop")


def _row_axes(rows: int) -> tuple[str, ...]:
    """Returns the mesh axes that rows are sharded over; empty if they do not divide the rows."""
    mesh = jax.sharding.get_abstract_mesh().shape
    axes = tuple(axis for axis in ("data", "fsdp") if mesh.get(axis, 1) > 1)
    return axes if rows % math.prod(mesh[axis] for axis in axes) == 0 else ()


def _on_devices(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)
