"""Fused attention of each device's rows and heads.

Rows are sharded over the mesh axes of "batch", heads over the mesh axes of "heads". The derivative
of the Pallas kernels is written outside `shard_map`, which thus never transposes a collective, and
works inside a region that is manual over other axes.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import PartitionSpec

from big_retrieval.models import tpu_attention
from big_retrieval.models.tpu_attention_body import Spec
from big_retrieval.runtime.mesh_axes import auto_axes


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, causal: bool
) -> jax.Array:
    """Computes attention by cuDNN: [B, L, H, d] in bfloat16 or float16 -> [B, L, H, d].

    Args:
      mask: [B or 1, L], true only at the first keys of each row; None for all keys.
      causal: position i attends to 0 .. i only.
    """

    def compute(q: jax.Array, k: jax.Array, v: jax.Array, *counts: jax.Array) -> jax.Array:
        lengths: dict[str, Any] = {}
        if counts:
            lengths["query_seq_lengths"] = jnp.full(q.shape[:1], q.shape[1], jnp.int32)
            lengths["key_value_seq_lengths"] = jnp.broadcast_to(counts[0], q.shape[:1])
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, implementation="cudnn", **lengths
        )

    rows, heads = _row_axes(q.shape[0]), mesh_axes("heads")
    by, counts, count_by = PartitionSpec(rows, None, heads), (), PartitionSpec()
    if mask is not None:
        # cuDNN gives NaN for a row without keys.
        counts = (jnp.maximum(jnp.sum(mask.astype(jnp.int32), axis=1), 1),)
        count_by = PartitionSpec(rows if mask.shape[0] > 1 else None)
    in_specs = (by, by, by, *(count_by for _ in counts))
    return _on_each_device(compute, in_specs, by, (q, k, v, *counts))


def pallas_attention(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> jax.Array:
    """Computes softmax(q k^T / sqrt(d) + row) v, [B, L, W], by the Pallas kernels.

    It needs no communication. Gradients reach `x` and `bias`, but not `row`.

    Args:
      x: [B, L, 3 W] from a product with `tpu_attention.joint_kernel`; L is a multiple of 8.
      bias: [3 W], added to `x`, in the order of `joint_kernel`.
      row: float32 [B or 1, L], added to the scores of each key; None for nothing.
    """
    return _attention(x, _as_varying(bias, x), row, spec)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> jax.Array:
    return _forward(x, bias, row, spec)[0]


def _forward(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> Any:
    x = x + bias.astype(x.dtype)  # fused into the product
    wide, stats, heads, row_by = _specs(x, row)
    local = spec._replace(heads=spec.heads // axis_size(heads))
    compute = functools.partial(tpu_attention.forward, spec=local)
    y, s = _on_each_device(compute, (wide, row_by), (wide, stats), (x, row))
    return y, (x, bias, row, s)


def _backward(spec: Spec, residuals: Any, dy: jax.Array) -> Any:
    x, bias, row, s = residuals
    wide, stats, heads, row_by = _specs(x, row)
    local = spec._replace(heads=spec.heads // axis_size(heads))

    def compute(*arrays: Any) -> tuple[jax.Array, jax.Array]:
        dx, db = tpu_attention.backward(*arrays, spec=local)
        return dx, jax.lax.psum(db, wide[0]) if wide[0] else db

    specs = (wide, stats, wide, row_by), (wide, PartitionSpec(heads))
    dx, db = _on_each_device(compute, *specs, (x, s, dy, row))
    return dx, db.astype(bias.dtype), None if row is None else jnp.zeros_like(row)


_attention.defvjp(_forward, _backward)


def _specs(x: jax.Array, row: jax.Array | None) -> tuple[Any, Any, tuple[str, ...], Any]:
    """Returns shardings of [B, L, W] and of statistics [B, G, S, L], axes of heads, the row's."""
    rows, heads = _row_axes(x.shape[0]), mesh_axes("heads")
    row_by = PartitionSpec(rows if row is not None and row.shape[0] > 1 else None)
    return PartitionSpec(rows, None, heads), PartitionSpec(rows, heads), heads, row_by


def _on_each_device(compute: Any, in_specs: Any, out_specs: Any, arrays: Any) -> Any:
    """Calls `compute` with each device's part of the arrays; kernels cannot be divided."""
    auto = set(auto_axes())
    if not auto:
        return compute(*arrays)
    # jax refuses interpreted kernels where values vary over a mesh axis.
    check = not tpu_attention.is_interpreted()
    return jax.shard_map(
        compute, in_specs=in_specs, out_specs=out_specs, axis_names=auto, check_vma=check
    )(*arrays)


def _as_varying(x: jax.Array, like: jax.Array) -> jax.Array:
    """Returns `x` as varying over all manual axes of `like`."""
    mats = [getattr(jax.typeof(array), "mat", None) for array in (x, like)]
    if None in mats:
        return x
    more = tuple(mats[1].varying - mats[0].varying)  # type: ignore
    return jax.lax.pcast(x, more, to="varying") if more else x


def mesh_axes(name: str) -> tuple[str, ...]:
    """Returns the mesh axes of a logical axis that no surrounding `shard_map` splits."""
    axes = (logical_to_mesh_axes((name,)) or (None,))[0]
    axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
    return tuple(axis for axis in axes if axis in auto_axes())


def _row_axes(batch: int) -> tuple[str, ...]:
    """Returns the mesh axes of rows; none if they do not divide the batch, which is replicated."""
    axes = mesh_axes("batch")
    return () if batch % axis_size(axes) else axes


def axis_size(axes: tuple[str, ...]) -> int:
    """Returns the product of the sizes of axes from `mesh_axes`."""
    return math.prod(auto_axes()[axis] for axis in axes)
