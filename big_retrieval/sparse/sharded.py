"""Rows [n, V] of lexical representations that are sharded over the devices of a mesh.

Rows lie on its axes data and fsdp, terms on tensor. XLA does not know that a choice of terms
treats every row by itself, and would gather all rows for it; nor that the largest terms of a row
are among the largest of its parts. So these few functions say what each device does. Derivatives
are written outside `shard_map`, which thus never transposes a collective.
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
    """The mesh axis that terms are sharded over (`jax.set_mesh`); None: there is none."""
    mesh = jax.sharding.get_abstract_mesh().shape
    return TERM_AXIS if mesh.get(TERM_AXIS, 1) > 1 else None


def pad_terms(x: jax.Array, axis: str | None, value: float = 0, lanes: int = 1) -> jax.Array:
    """[..., V] with a multiple of `lanes` terms on every device of a mesh axis; None: no axis."""
    devices = 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]
    more = -x.shape[-1] % (lanes * devices)
    widths = [(0, 0)] * (x.ndim - 1) + [(0, more)]
    return jnp.pad(x, widths, constant_values=value) if more else x


def terms_here(terms: jax.Array, width: int, axis: str | None) -> jax.Array:
    """Inside `shard_map`: terms counted from the first of this device's `width` ones.

    Args:
      terms: int32, -1 for none; those of other devices become -1.
      width: terms that a device has.
      axis: mesh axis that terms are sharded over; None: every device has all.
    """
    if axis is None:
        return terms
    here = terms - jax.lax.axis_index(axis) * width
    return jnp.where((terms >= 0) & (here >= 0) & (here < width), here, -1)


def by_rows(function: Callable[..., Any], *arrays: Any) -> Any:
    """A function that treats every row by itself, on each device for its own rows.

    Args:
      function: of arrays [n, ...] or None, to arrays [n, ...]; without collectives.
      *arrays: rows sharded over the mesh axes data and fsdp (`jax.set_mesh`), or no mesh at all.
    """
    (rows,) = {x.shape[0] for x in jax.tree.leaves(arrays)}
    axes = _row_axes(rows)
    if not axes:
        return function(*arrays)
    return _on_devices(function, P(axes), P(axes))(*arrays)


def strongest(embeddings: jax.Array, top_k: int) -> jax.Array:
    """int32 [n, top_k], the largest terms of each row of [n, V], of equal ones the first.

    Of sharded terms, every device sends its `top_k` largest ones only.
    """
    if not top_k:
        return jnp.zeros((len(embeddings), 0), jnp.int32)
    embeddings, axis = jax.lax.stop_gradient(embeddings), term_axis()
    if axis is None:
        return by_rows(functools.partial(_strongest, top_k=top_k), embeddings)
    rows = _row_axes(len(embeddings)) or None
    # -inf, so that a column that only fills up is never among the largest terms.
    merged = functools.partial(_strongest_of_all, top_k=top_k, axis=axis)
    return _on_devices(merged, P(rows, axis), P(rows))(pad_terms(embeddings, axis, -jnp.inf))


def _strongest(embeddings: jax.Array, top_k: int) -> jax.Array:
    return jax.lax.top_k(embeddings, top_k)[1].astype(jnp.int32)


def _strongest_of_all(embeddings: jax.Array, top_k: int, axis: str) -> jax.Array:
    """Of each part the largest, gathered in the order of the parts, so that equal ones keep it."""
    width = embeddings.shape[-1]
    here = _strongest(embeddings, min(top_k, width))
    values = jnp.take_along_axis(embeddings, here, axis=1)
    terms = here + jax.lax.axis_index(axis) * width
    values, terms = (jax.lax.all_gather(x, axis, axis=1, tiled=True) for x in (values, terms))
    return jnp.take_along_axis(terms, _strongest(values, top_k), axis=1)


def take(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
    """Values [n, K] of rows [n, V] at terms int32 [n, K]; 0 at -1."""
    axis = term_axis()
    if axis is None:
        return by_rows(take_locally, embeddings, terms)
    return _take_sharded(pad_terms(embeddings, axis), terms)


@jax.custom_vjp
def take_locally(rows: jax.Array, terms: jax.Array) -> jax.Array:
    """`take` of one device's rows [n, V]; its gradient is `dense_locally`."""
    values = jnp.take_along_axis(rows, jnp.maximum(terms, 0), axis=1)
    return jnp.where(terms >= 0, values, 0)


def _take_locally_forward(
    rows: jax.Array, terms: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, int]]:
    return take_locally(rows, terms), (terms, rows.shape[1])


def _take_locally_backward(
    residuals: tuple[jax.Array, int], grads: jax.Array
) -> tuple[jax.Array, None]:
    terms, width = residuals
    return dense_locally(grads, terms, width), None


take_locally.defvjp(_take_locally_forward, _take_locally_backward)


@jax.custom_vjp
def _take_sharded(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
    """`take` of terms that are sharded over the mesh."""
    rows = _row_axes(len(embeddings)) or None

    def local(embeddings: jax.Array, terms: jax.Array) -> jax.Array:
        found = take_locally(embeddings, terms_here(terms, embeddings.shape[-1], TERM_AXIS))
        # Each term lies on one device; all others add 0.
        return jax.lax.psum(found, TERM_AXIS)

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
    """Dense rows [n, width] of sparse ones, on each device its own rows and terms of them.

    Args:
      function: of `arrays` and `width`, to [n, width]; without collectives.
      width: V.
      *arrays: [n, K]; the last are terms, int32, -1 for none.
    """
    axis = term_axis()
    if axis is None:
        return by_rows(functools.partial(function, width=width), *arrays)
    mine = -(-width // jax.sharding.get_abstract_mesh().shape[axis])
    rows = P(_row_axes(len(arrays[-1])) or None)

    def local(*arrays: jax.Array) -> jax.Array:
        return function(*arrays[:-1], terms_here(arrays[-1], mine, axis), width=mine)

    return _on_devices(local, rows, P(*rows, axis))(*arrays)[:, :width]


def dense_locally(values: jax.Array, terms: jax.Array, width: int) -> jax.Array:
    """Rows [n, width] of their values and terms [n, K], -1 for none.

    On TPUs by a product (see `products`), elsewhere by a scatter.
    """
    if traced_platform() == "tpu":
        return products.dense(values, terms, width)
    # -1 would count from the end of a row; `width` lies behind it and is dropped.
    place = jnp.where(terms < 0, width, terms)
    index = jnp.arange(len(place))[:, None]
    out = jnp.zeros((len(place), width), values.dtype)
    return out.at[index, place].add(values, mode="drop")


def _row_axes(rows: int) -> tuple[str, ...]:
    """The mesh axes that rows are sharded over; () where there are none, or they do not divide."""
    mesh = jax.sharding.get_abstract_mesh().shape
    axes = tuple(axis for axis in ("data", "fsdp") if mesh.get(axis, 1) > 1)
    return axes if rows % math.prod(mesh[axis] for axis in axes) == 0 else ()


def _on_devices(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)
