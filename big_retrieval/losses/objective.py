"""Objectives: from representations, a batch and learned scalars to one number and its metrics.

A new loss is a module of this room, a dataclass in `big_retrieval.config` and a line in
`make_objective`. It never sees a tower, an optimiser or a mesh.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from big_retrieval import similarity
from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Temperature
from big_retrieval.losses.contrastive import contrastive_loss

Scalars = Mapping[str, jax.Array]


class Objective(Protocol):
    """What the step calls."""

    def scalars(self) -> dict[str, float]:
        """The learned scalars with their starts."""
        ...

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The scalars put back into their bounds, after the optimiser's update."""
        ...

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss [] and metrics [] of a global batch; pure."""
        ...


@dataclass(frozen=True)
class ContrastiveObjective:
    """Symmetric cross-entropy of tau * score over the global batch (oblique paper, Eq. 2).

    tau = exp(t) multiplies; t is learned unless `temperature.learnable` is False.

    Attributes:
      topology: scores points.
      temperature: start and bounds of tau.
      query: field of the query side.
      document: field of the document side.
    """

    topology: similarity.Topology
    temperature: Temperature
    query: str
    document: str

    def scalars(self) -> dict[str, float]:
        """`temperature`: t = log(tau)."""
        return {"temperature": math.log(self.temperature.init)}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """t clipped to the logarithms of the bounds, as after every step in open_clip."""
        low, high = self.temperature.min, self.temperature.max
        t = scalars["temperature"]
        if self.temperature.learnable:
            t = jnp.clip(
                t,
                None if low is None else math.log(low),
                None if high is None else math.log(high),
            )
        return {**scalars, "temperature": t}

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """See `contrastive_loss`; adds tau to the metrics."""
        t = scalars["temperature"]
        tau = jnp.exp(t if self.temperature.learnable else jax.lax.stop_gradient(t))
        loss, metrics = contrastive_loss(
            reps.points[self.document],
            reps.points[self.query],
            score=self.topology.score,
            scale=tau,
            valid=batch.valid,
        )
        return loss, {**metrics, "temperature": tau}


def make_objective(config: Config) -> Objective:
    """The objective of a checked config."""
    sides = {field.side: name for name, field in config.fields.items()}
    return ContrastiveObjective(
        topology=similarity.topology(config.topology),
        temperature=config.temperature,
        query=sides["query"],
        document=sides["document"],
    )
