"""Constraints on losses: multipliers that grow while a bound is violated.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval", Eq. 9: instead of a weighted L the total has lambda * (L / bound - 1), minimised over
the parameters and maximised over lambda. With g = L / bound - 1 of the same batch, lambda's ascent
is that of SGD with momentum as PyTorch has it, whose first step is not dampened:

  m_1 = g_1,    m_t = momentum * m_{t-1} + (1 - dampening) * g_t,    raw_t = raw_{t-1} + rate * m_t

The loss reads lambda = clip(raw, min, max). The gradient that reaches the raw value is g even where
the clip is at its end ("straight-through"), so that it may run beyond the range and takes as long
to come back, unless it is projected.
"""

from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.config.loss import Constraint

Multiplier = dict[str, jax.Array]


def start(config: Constraint) -> Multiplier:
    """The state of a multiplier before the first step.

    Returns:
      `raw` and `momentum`, float32 []; `steps`, updates done, and `violations`, how many of these
      steps had L above the bound, int32 [].
    """
    zero = jnp.zeros((), jnp.int32)
    raw = jnp.asarray(config.start, jnp.float32)
    return {"raw": raw, "momentum": jnp.zeros((), jnp.float32), "steps": zero, "violations": zero}


def effective(config: Constraint, raw: jax.Array) -> jax.Array:
    """lambda, []: the raw value within its range."""
    return jnp.clip(raw, config.min, config.max)


def penalty(config: Constraint, multiplier: Multiplier, value: jax.Array) -> jax.Array:
    """lambda * (L / bound - 1), []; lambda has no gradient.

    Args:
      config: with a bound.
      multiplier: its state.
      value: L.
    """
    assert config.bound is not None
    factor = jax.lax.stop_gradient(effective(config, multiplier["raw"]))
    return factor * (value / config.bound - 1)


def ascend(config: Constraint, multiplier: Multiplier, value: jax.Array) -> Multiplier:
    """The state after a step whose loss was `value`, L []."""
    assert config.bound is not None
    gradient = (value / config.bound - 1).astype(jnp.float32)
    dampened = config.momentum * multiplier["momentum"] + (1 - config.dampening) * gradient
    momentum = jnp.where(multiplier["steps"] == 0, gradient, dampened)
    raw = multiplier["raw"] + config.rate * momentum
    return {
        "raw": effective(config, raw) if config.projected else raw,
        "momentum": momentum,
        "steps": multiplier["steps"] + 1,
        "violations": multiplier["violations"] + (value > config.bound),
    }


def metrics(config: Constraint, multiplier: Multiplier) -> dict[str, Any]:
    """What is logged of a multiplier after a step.

    Returns:
      `multiplier`, lambda; `multiplier_raw`; `violations`, the share of all steps that had L above
      the bound.
    """
    steps = jnp.maximum(multiplier["steps"], 1)
    return {
        "multiplier": effective(config, multiplier["raw"]),
        "multiplier_raw": multiplier["raw"],
        "violations": multiplier["violations"] / steps,
    }
