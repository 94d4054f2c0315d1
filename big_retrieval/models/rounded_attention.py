"""Attention for accelerators that stores scores and weights in the type of the computation.

XLA writes the scores [B, H, L, L] to memory. In 16 bits they take half of the bytes and time.
Maxima and sums are computed in float32.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def rounded_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, extra: Sequence[jax.Array] = ()
) -> jax.Array:
    """Computes softmax attention, [B, L, H, d] -> [B, L, H, d] in the type of the inputs.

    Args:
      extra: arrays to add to the scaled scores, broadcast to [B, H, L, L]. Gradients reach them.
    """
    return _attention(q, k, v, tuple(part.astype(jnp.float32) for part in extra))


@jax.custom_vjp
def _attention(q: jax.Array, k: jax.Array, v: jax.Array, extra: tuple[jax.Array, ...]) -> jax.Array:
    return _forward(q, k, v, extra)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, extra: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    for part in extra:
        scores = scores + part
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
    return dq, dk, dv, tuple(_sum_to(wide, part) for part in extra)


_attention.defvjp(_forward, _backward)


def _sum_to(x: jax.Array, like: jax.Array) -> jax.Array:
    """Sums x over the axes along which `like` is broadcast to its shape."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - like.ndim)))
    axes = tuple(i for i, size in enumerate(like.shape) if size == 1 and x.shape[i] != 1)
    return jnp.sum(x, axis=axes, keepdims=True)
