"""Attention by XLA, for all platforms, masks, biases and dropout.

XLA writes the scores [B, H, L, L] to memory. On accelerators, 16-bit computations without dropout
store scores and weights in 16 bits (`rounded_attention`), which takes half of the bytes and time.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.models.layers import EXCLUDED, dropout, wide
from big_retrieval.runtime.platform import traced_platform


def plain_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    causal: bool,
    rate: float,
    rows: jax.Array | None,
) -> jax.Array:
    """Computes attention in a Linen method, [B, L, H, d] -> [B, L, H, d]; see `Attention`.

    `rate` is the dropout of the weights; `rows` is for `layers.dropout`.
    """
    extra = [] if bias is None else [bias]
    if causal:
        seen = np.tril(np.ones((q.shape[1], q.shape[1]), bool))  # [L, L]
        extra.append(jnp.where(seen, 0, EXCLUDED))
    if mask is not None:
        extra.append(jnp.where(mask.astype(bool), 0, EXCLUDED)[:, None, None, :])
    low = q.dtype.itemsize < 4 and traced_platform() != "cpu"
    if low and not rate:
        return rounded_attention(q, k, v, extra)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    # [B, H, L, d] each, a layout that makes the products twice as fast on CPUs
    stats = wide(q.dtype)
    logits = jnp.einsum(
        "bhqd,bhkd->bhqk", q, k, preferred_element_type=q.dtype if low else stats
    ).astype(stats)  # [B, H, L, L]
    logits = logits * (q.shape[-1] ** -0.5)
    for x in extra:
        logits = logits + x.astype(stats)
    logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(logits)
    # The division follows the sum over keys: d values per query instead of L.
    total = jnp.sum(weights, axis=-1, keepdims=True)  # [B, H, L, 1]
    weights = dropout(weights.astype(q.dtype), rate, rows)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=stats)
    return (y / total).astype(q.dtype).swapaxes(1, 2)  # [B, L, H, d]


def rounded_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, extra: Sequence[jax.Array] = ()
) -> jax.Array:
    """Computes attention with scores and weights in the type of the inputs, statistics in float32.

    Args:
      extra: arrays to add to the scaled scores, broadcast to [B, H, L, L]. Gradients reach them.
    """
    return _attention(q, k, v, tuple(x.astype(jnp.float32) for x in extra))


@jax.custom_vjp
def _attention(q: jax.Array, k: jax.Array, v: jax.Array, extra: tuple[jax.Array, ...]) -> jax.Array:
    return _forward(q, k, v, extra)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, extra: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    for x in extra:
        scores = scores + x
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), (q, k, v, weights, *extra)


def _backward(
    residuals: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]:
    q, k, v, weights, *extra = residuals
    dv = jnp.einsum("bhqk,bqhd->bkhd", weights, dy)
    dweights = jnp.einsum("bqhd,bkhd->bhqk", dy, v).astype(jnp.float32)
    weights = weights.astype(jnp.float32)
    mean = jnp.sum(weights * dweights, axis=-1, keepdims=True)
    wide = weights * (dweights - mean)  # gradient of the scaled scores [B, H, L, L]
    dscores = (wide * q.shape[-1] ** -0.5).astype(q.dtype)
    dq = jnp.einsum("bhqk,bkhd->bqhd", dscores, k)
    dk = jnp.einsum("bhqk,bqhd->bkhd", dscores, q)
    return dq, dk, dv, tuple(_sum_to(wide, x) for x in extra)


_attention.defvjp(_forward, _backward)


def _sum_to(x: jax.Array, like: jax.Array) -> jax.Array:
    """Sums x over the axes along which `like` is broadcast to its shape."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - like.ndim)))
    axes = tuple(i for i, size in enumerate(like.shape) if size == 1 and x.shape[i] != 1)
    return jnp.sum(x, axis=axes, keepdims=True)
