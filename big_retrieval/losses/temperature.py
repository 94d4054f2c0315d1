"""The learned multiplier of the scores."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from big_retrieval.config.loss import Temperature
from big_retrieval.losses.function import Scalars


@dataclass(frozen=True)
class LearnedTemperature:
    """tau = exp(t), the multiplier of the scores; t is learned unless `learnable` is False.

    Attributes:
      config: start and bounds of tau.
    """

    config: Temperature

    def scalars(self) -> dict[str, float]:
        """`temperature`: t = log(tau)."""
        return {"temperature": math.log(self.config.init)}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """t clipped to the logarithms of the bounds, as after every step in open_clip."""
        t = scalars["temperature"]
        if self.config.learnable:
            low, high = self.config.min, self.config.max
            low, high = (None if x is None else math.log(x) for x in (low, high))
            t = jnp.clip(t, low, high)
        return {**scalars, "temperature": t}

    def tau(self, scalars: Scalars) -> jax.Array:
        """The multiplier, []."""
        t = scalars["temperature"]
        return jnp.exp(t if self.config.learnable else jax.lax.stop_gradient(t))
