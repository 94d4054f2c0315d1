"""Constraints on losses: multipliers that grow while a bound is violated.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval", Eq. 9: instead of a weighted L the total has lambda * (L / bound - 1), minimized over
the parameters and maximized over lambda. With g = L / bound - 1 of the same batch, lambda ascends
by PyTorch's SGD with momentum, whose first step is not dampened:

  m_1 = g_1,    m_t = momentum * m_{t-1} + (1 - dampening) * g_t,    raw_t = raw_{t-1} + rate * m_t

The loss reads lambda = clip(raw, min, max). The gradient of the raw value is g even outside of the
range ("straight-through"). The raw value may therefore leave the range, and needs steps to return,
unless `projected` clips it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.config.loss import Constraint

Multiplier = dict[str, jax.Array]


def start(config: Constraint) -> Multiplier:
    """Returns the state of a multiplier before the first step.

    float32 []: `raw` and `momentum`. int32 []: `steps`, the number of updates; `violations`, the
    number of steps with L above the bound; `violated_for`, the latest such steps in a row.
    """
    counts = ("steps", "violations", "violated_for")
    raw = jnp.asarray(config.start, jnp.float32)
    zeros = dict.fromkeys(counts, jnp.zeros((), jnp.int32))
    return {"raw": raw, "momentum": jnp.zeros((), jnp.float32), **zeros}


def effective(config: Constraint, raw: jax.Array) -> jax.Array:
    """Returns lambda, []: the raw value within its range."""
    return jnp.clip(raw, config.min, config.max)


def slope(config: Constraint, value: jax.Array) -> jax.Array:
    """Returns L / bound - 1, []: the gradient of the raw value, also outside of the range."""
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

    `multiplier` is lambda, `violations` the share of all steps with L above the bound.
    """
    steps = jnp.maximum(multiplier["steps"], 1)
    return {
        "multiplier": effective(config, multiplier["raw"]),
        "multiplier_raw": multiplier["raw"],
        "violations": multiplier["violations"] / steps,
        "violated_for": multiplier["violated_for"],
    }


def warnings(config: Constraint, name: str, metrics: Mapping[str, float]) -> Iterator[str]:
    """Yields a warning about a bound that is not reached, from `loss` and `metrics` of a step."""
    steps, multiplier = int(metrics["violated_for"]), metrics["multiplier"]
    at_maximum = config.max is not None and multiplier >= config.max and steps > 0
    if at_maximum or steps >= config.warn_after:
        maximum = " (the maximum)" if at_maximum else ""
        yield (
            f"the loss {name!r} is {metrics['loss']:.4g} and was above its bound {config.bound:g} "
            f"in the last {steps:,} steps, with a multiplier of {multiplier:.4g}{maximum}. Raise "
            f"config.losses.{name}.constraint.bound above the value that the loss reaches with a "
            "weight, enlarge the loss's module (such as its decoder), or train for longer."
        )
