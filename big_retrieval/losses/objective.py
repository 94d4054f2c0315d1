"""Objectives: from representations, a batch and learned scalars to one number and its metrics.

A new loss is a module of this room, a dataclass in `big_retrieval.config` and a line in
`make_objective`. It never sees a tower, an optimiser or a mesh.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from big_retrieval import similarity
from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, Sigmoid, Temperature
from big_retrieval.losses.contrastive import Execution, contrastive_loss, sigmoid_loss

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


@dataclass(frozen=True)
class _PairObjective:
    """What both losses read and learn.

    Attributes:
      topology: scores points.
      temperature: the multiplier.
      query: field of the query side.
      document: field of the document side.
    """

    topology: similarity.Topology
    temperature: LearnedTemperature
    query: str
    document: str

    def scalars(self) -> dict[str, float]:
        """`temperature`."""
        return self.temperature.scalars()

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The temperature within its bounds; a bias has none."""
        return self.temperature.bound(scalars)

    def _arguments(
        self, reps: Reps, batch: Batch, config: Contrastive | Sigmoid, tau: jax.Array
    ) -> dict[str, Any]:
        """The arguments that `contrastive_loss` and `sigmoid_loss` share."""
        return {
            "query": reps.points[self.query],
            "document": reps.points[self.document],
            "topology": self.topology,
            "scale": tau,
            "valid": batch.valid,
            "document_id": batch.document_id,
            "false_negatives": config.false_negatives,
            "execution": Execution(config.exchange, config.block),
        }


@dataclass(frozen=True)
class ContrastiveObjective(_PairObjective):
    """Symmetric cross-entropy of tau * score over the global batch (oblique paper, Eq. 2).

    Attributes:
      config: what known pairs count as, and how the loss is computed.
    """

    config: Contrastive

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """See `contrastive_loss`; adds tau to the metrics."""
        tau = self.temperature.tau(scalars)
        loss, metrics = contrastive_loss(**self._arguments(reps, batch, self.config, tau))
        return loss, {**metrics, "temperature": tau}


@dataclass(frozen=True)
class SigmoidObjective(_PairObjective):
    """Every cell of the global batch a binary decision on tau * score + bias (SigLIP).

    Attributes:
      config: start of the bias, what known pairs count as, and how the loss is computed.
    """

    config: Sigmoid

    def scalars(self) -> dict[str, float]:
        """`temperature` and `bias`."""
        return {**super().scalars(), "bias": self.config.bias}

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """See `sigmoid_loss`; adds tau and the bias to the metrics."""
        tau, bias = self.temperature.tau(scalars), scalars["bias"]
        loss, metrics = sigmoid_loss(bias=bias, **self._arguments(reps, batch, self.config, tau))
        return loss, {**metrics, "temperature": tau, "bias": bias}


def make_objective(config: Config) -> Objective:
    """The objective of a checked config."""
    sides = {field.side: name for name, field in config.fields.items()}
    topology = similarity.topology(config.topology)
    parts = (topology, LearnedTemperature(config.temperature), sides["query"], sides["document"])
    if isinstance(config.loss, Sigmoid):
        return SigmoidObjective(*parts, config.loss)
    return ContrastiveObjective(*parts, config.loss)
