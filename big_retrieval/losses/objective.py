"""Objectives: from representations, a batch and learned scalars to one number and its metrics.

A new loss is a module of this room, a dataclass in `big_retrieval.config` and a line in
`make_objective`. It never sees a tower, an optimiser or a mesh.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, Sigmoid, Temperature
from big_retrieval.losses.contrastive import Execution, Result, contrastive_loss, sigmoid_loss
from big_retrieval.losses.fields import Sides, make_sides, pair_weights

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
      sides: the fields of both sides; scores points.
      temperature: the multiplier, one for all terms.
      normalise: whether the weights of a batch are divided by their mean.
    """

    sides: Sides
    temperature: LearnedTemperature
    normalise: bool

    def scalars(self) -> dict[str, float]:
        """`temperature`."""
        return self.temperature.scalars()

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The temperature within its bounds; a bias has none."""
        return self.temperature.bound(scalars)

    def _sum_of_terms(
        self,
        loss: Callable[..., Result],
        reps: Reps,
        batch: Batch,
        config: Contrastive | Sigmoid,
        tau: jax.Array,
    ) -> Result:
        """A loss summed over the terms that the fields make (GCL, Eq. 5).

        The metrics are those of the first term, and `loss_<term>` of each where there are several.
        """
        common = {
            "topology": self.sides.topology,
            "scale": tau,
            "weight": pair_weights(batch, self.normalise),
            "valid": batch.valid,
            "query_id": batch.query_id,
            "document_id": batch.document_id,
            "false_negatives": config.false_negatives,
            "execution": Execution(config.exchange, config.block),
        }
        terms = self.sides.terms(config.terms)
        values, metrics = {}, {}
        for term in terms:
            query, query_there = self.sides.points(reps, batch, term.query)
            document, document_there = self.sides.points(reps, batch, term.document)
            there = query_there, document_there
            values[term.name], found = loss(query, document, there=there, **common)
            metrics = metrics or found
        if len(terms) > 1:
            metrics = metrics | {f"loss_{name}": value for name, value in values.items()}
        return functools.reduce(jnp.add, values.values()), metrics


@dataclass(frozen=True)
class ContrastiveObjective(_PairObjective):
    """Symmetric cross-entropy of tau * score over the global batch (oblique paper, Eq. 2).

    Attributes:
      config: what known pairs count as, what is divided by, and how the loss is computed.
    """

    config: Contrastive

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """See `contrastive_loss`; adds tau to the metrics."""
        tau = self.temperature.tau(scalars)
        one = functools.partial(contrastive_loss, divide_by=self.config.divide_by)
        loss, metrics = self._sum_of_terms(one, reps, batch, self.config, tau)
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
        inside = self.config.weight_inside
        one = functools.partial(sigmoid_loss, bias=bias, weight_inside=inside)
        loss, metrics = self._sum_of_terms(one, reps, batch, self.config, tau)
        return loss, {**metrics, "temperature": tau, "bias": bias}


def make_objective(config: Config) -> Objective:
    """The objective of a checked config."""
    parts = make_sides(config), LearnedTemperature(config.temperature), config.labels.normalise
    if isinstance(config.loss, Sigmoid):
        return SigmoidObjective(*parts, config.loss)
    return ContrastiveObjective(*parts, config.loss)
