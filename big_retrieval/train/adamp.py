"""AdamP: Adam that does not let the norm of scale-invariant weights grow.

"AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant Weights". A weight
before a norm is scale-invariant: its gradient is orthogonal to it, but momentum is not, so that its
norm grows and its effective rate shrinks. If gradient and weight are orthogonal, AdamP removes the
part of the update along the weight.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

View = Sequence[int]


def scale_by_adamp(
    output_axis: Any,
    weight_decay: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    delta: float = 0.1,
    decay_ratio: float = 0.1,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Returns a transformation of gradients to AdamP's updates, before the learning rate.

    Args:
      output_axis: tree of ints like the parameters: axis of a weight whose entries are units of the
        layer's output. The test is for each unit first, then for all units together.
      weight_decay: tree of numbers like the parameters; this times the parameter is added.
      delta: weights count as scale-invariant if |cosine| < delta / sqrt(size).
      decay_ratio: factor of the weight decay of scale-invariant weights.
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        assert params is not None, "AdamP needs the parameters"
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        first, second = 1 - b1**count, 1 - b2**count  # both means begin at 0

        def update_of(g: Any, m: Any, v: Any, p: Any, axis: int, decay: float) -> jax.Array:
            ahead = b1 * m + (1 - b1) * g if nesterov else m
            step = ahead / (jnp.sqrt(v) / jnp.sqrt(second).astype(v.dtype) + eps)
            ratio: Any = 1.0
            if p.ndim > 1:
                step, ratio = _project(p, g, step, axis, delta, decay_ratio, eps)
            step = step / first.astype(step.dtype)
            return step + decay * ratio * p if decay else step

        updates = jax.tree.map(update_of, grads, mu, nu, params, output_axis, weight_decay)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)  # type: ignore


def _project(
    p: jax.Array, g: jax.Array, step: jax.Array, axis: int, delta: float, ratio: float, eps: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the update without the radial part of scale-invariant views, and the decay factor."""
    units = tuple(i for i in range(p.ndim) if i != axis % p.ndim)  # one vector per output unit
    decay, is_projected, out = jnp.ones((), p.dtype), jnp.zeros((), bool), step
    for axes in (units, tuple(range(p.ndim))):  # the first view that fits decides
        size = math.prod(p.shape[i] for i in axes)
        fits = jnp.max(_cosine(g, p, axes, eps)) < delta / math.sqrt(size)
        unit = p / (_norm(p, axes) + eps)
        radial = unit * jnp.sum(unit * step, axes, keepdims=True)
        out = jnp.where(fits & ~is_projected, step - radial, out)
        decay = jnp.where(fits, ratio, decay)
        is_projected |= fits
    return out, decay


def _norm(x: jax.Array, axes: View) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))


def _cosine(x: jax.Array, y: jax.Array, axes: View, eps: float) -> jax.Array:
    """Computes |cosine| of two weights along some axes."""
    lengths = jnp.maximum(_norm(x, axes), eps) * jnp.maximum(_norm(y, axes), eps)
    return jnp.abs(jnp.sum(x * y, axes, keepdims=True) / lengths)
