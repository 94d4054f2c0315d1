"""The learned multiplier of the scores."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from big_retrieval.config.loss import LogitScale
from big_retrieval.losses.function import Scalars


@dataclass(frozen=True)
class LearnedLogitScale:
    """The multiplier of the scores, which is exp(t); t is learned unless `learnable` is False.

    Attributes:
      config: start and bounds of the multiplier.
    """

    config: LogitScale

    def scalars(self) -> dict[str, float]:
        """`logit_scale`: t, the logarithm of the multiplier."""
        return {"logit_scale": math.log(self.config.init)}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """t clipped to the logarithms of the bounds, as after every step in open_clip."""
        t = scalars["logit_scale"]
        if self.config.learnable:
            low, high = self.config.min, self.config.max
            low, high = (None if x is None else math.log(x) for x in (low, high))
            t = jnp.clip(t, low, high)
        return {**scalars, "logit_scale": t}

    def value(self, scalars: Scalars) -> jax.Array:
        """The multiplier, []."""
        t = scalars["logit_scale"]
        return jnp.exp(t if self.config.learnable else jax.lax.stop_gradient(t))
