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

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.config.loss import Constraint

Multiplier = dict[str, jax.Array]


def start(config: Constraint) -> Multiplier:
    """Returns the state of a multiplier before the first step.

    Returns:
      `raw` and `momentum`, float32 []; `steps`, updates done, `violations`, how many of these steps
      had L above the bound, and `violated_for`, how many of the last ones in a row, int32 [].
    """
    counts = ("steps", "violations", "violated_for")
    raw = jnp.asarray(config.start, jnp.float32)
    zeros = dict.fromkeys(counts, jnp.zeros((), jnp.int32))
    return {"raw": raw, "momentum": jnp.zeros((), jnp.float32), **zeros}


def effective(config: Constraint, raw: jax.Array) -> jax.Array:
    """Returns lambda, []: the raw value within its range."""
    return jnp.clip(raw, config.min, config.max)


def slope(config: Constraint, value: jax.Array) -> jax.Array:
    """Returns L / bound - 1, []: the gradient by the raw value, also at the ends of the clip."""
    assert config.bound is not None
    return value / config.bound - 1


def penalty(config: Constraint, multiplier: Multiplier, value: jax.Array) -> jax.Array:
    """Returns lambda * (L / bound - 1) of L = `value`, []; lambda has no gradient."""
    factor = jax.lax.stop_gradient(effective(config, multiplier["raw"]))
    return factor * slope(config, value)


def ascend(config: Constraint, multiplier: Multiplier, value: jax.Array) -> Multiplier:
    """Returns the state after a step whose loss was `value`, L []."""
    assert config.bound is not None
    gradient, above = slope(config, value).astype(jnp.float32), value > config.bound
    dampened = config.momentum * multiplier["momentum"] + (1 - config.dampening) * gradient
    momentum = jnp.where(multiplier["steps"] == 0, gradient, dampened)
    raw = multiplier["raw"] + config.rate * momentum
    return {
        "raw": effective(config, raw) if config.projected else raw,
        "momentum": momentum,
        "steps": multiplier["steps"] + 1,
        "violations": multiplier["violations"] + above,
        "violated_for": jnp.where(above, multiplier["violated_for"] + 1, 0),
    }


def metrics(config: Constraint, multiplier: Multiplier) -> dict[str, Any]:
    """Returns the metrics of a multiplier after a step.

    Returns:
      `multiplier`, lambda; `multiplier_raw`; `violations`, the share of all steps that had L above
      the bound; `violated_for`, how many of the last steps in a row had.
    """
    steps = jnp.maximum(multiplier["steps"], 1)
    return {
        "multiplier": effective(config, multiplier["raw"]),
        "multiplier_raw": multiplier["raw"],
        "violations": multiplier["violations"] / steps,
        "violated_for": multiplier["violated_for"],
    }


def warnings(config: Constraint, name: str, found: Mapping[str, float]) -> Iterator[str]:
    """Yields a warning about a bound that is not reached, from `loss` and `metrics` of a step."""
    steps, now = int(found["violated_for"]), found["multiplier"]
    full = config.max is not None and now >= config.max and steps > 0
    if full or steps >= config.warn_after:
        ceiling = ", its ceiling" if full else ""
        yield (
            f"the loss {name!r} is {found['loss']:.4g} and was above its bound {config.bound:g} in "
            f"the last {steps:,} steps, with a multiplier of {now:.4g}{ceiling}: raise "
            f"config.losses.{name}.constraint.bound above what the loss reaches by weight alone, "
            "make what the loss trains larger (such as its decoder), or train for longer."
        )
