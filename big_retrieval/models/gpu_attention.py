"""Attention on GPUs by cuDNN, for each device's rows and heads."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from big_retrieval.runtime.mesh_axes import axis_size, logical_axes, on_each_device, row_axes


def obstacle(shape: tuple[int, int, int], dtype: Any, causal: bool, bias: jax.Array | None) -> str:
    """Returns why cuDNN cannot compute an attention of [L, H, d] per device; empty if it can."""
    if bias is not None:
        return "biases to the scores are not passed to cuDNN"
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.manual_axes and axis_size(logical_axes("batch") + logical_axes("heads")) > 1:
        # jax cannot lower the residuals of a shard_map inside another one.
        return "in a region that is manual over some mesh axes, cuDNN needs the others to be 1"

    def gradients(x: jax.Array) -> Any:
        attend = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
        y, pull = jax.vjp(lambda x: attend(x, x, x, is_causal=causal), x)
        return pull(y)

    try:
        jax.eval_shape(gradients, jax.ShapeDtypeStruct((1, *shape), dtype))
    except (NotImplementedError, RuntimeError, ValueError) as error:  # jax's own reason
        return str(error).rstrip(".")
    return ""


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, causal: bool
) -> jax.Array:
    """Computes attention by cuDNN in 16 bits, [B, L, H, d] -> [B, L, H, d]; see `Attention`."""

    def compute(q: jax.Array, k: jax.Array, v: jax.Array, *counts: jax.Array) -> jax.Array:
        lengths: dict[str, Any] = {}
        if counts:
            lengths["query_seq_lengths"] = jnp.full(q.shape[:1], q.shape[1], jnp.int32)
            lengths["key_value_seq_lengths"] = jnp.broadcast_to(counts[0], q.shape[:1])
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, implementation="cudnn", **lengths
        )

    rows, counts, count_specs = row_axes(q.shape[0]), (), ()
    if mask is not None:
        # cuDNN gives NaN for a row without keys.
        counts = (jnp.maximum(jnp.sum(mask.astype(jnp.int32), axis=1), 1),)
        count_specs = (PartitionSpec(rows if mask.shape[0] > 1 else None),)
    spec = PartitionSpec(rows, None, logical_axes("heads"))
    run = on_each_device(compute, (spec, spec, spec, *count_specs), spec, check=True)
    return run(q, k, v, *counts)
