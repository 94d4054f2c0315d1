"""Objectives: from representations, a batch and learned scalars to one number and its metrics.

A new loss is a module of this room, a dataclass in `big_retrieval.config` and a line in
`make_objective`. It never sees a tower, an optimiser or a mesh.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, Sigmoid, Vdr, is_lexical
from big_retrieval.losses import activity
from big_retrieval.losses.contrastive import (
    Execution,
    Negatives,
    Result,
    contrastive_loss,
    sigmoid_loss,
)
from big_retrieval.losses.fields import Sides, make_sides, pair_weights
from big_retrieval.losses.lexical_objective import VdrObjective, sparsity
from big_retrieval.losses.temperature import LearnedTemperature, Scalars
from big_retrieval.spreading import column_axis


class Objective(Protocol):
    """What the step calls."""

    def scalars(self) -> dict[str, float]:
        """The learned scalars with their starts."""
        ...

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The scalars put back into their bounds, after the optimiser's update."""
        ...

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars, step: jax.Array | int = 0
    ) -> Result:
        """The loss [] and metrics [] of a global batch; pure.

        Args:
          reps: representations of all fields.
          batch: what is known of its rows.
          scalars: the learned ones.
          step: steps that are done, for what is warmed up.
        """
        ...

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """What a user should hear about the metrics of a step."""
        ...


@dataclass(frozen=True)
class _PairObjective:
    """What both losses read and learn.

    Attributes:
      sides: the fields of both sides; scores points.
      temperature: the multiplier, one for all terms.
      normalise: whether the weights of a batch are divided by their mean.
      lexical: whether the fields have lexical heads.
    """

    sides: Sides
    temperature: LearnedTemperature
    normalise: bool
    lexical: bool

    def scalars(self) -> dict[str, float]:
        """`temperature`."""
        return self.temperature.scalars()

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The temperature within its bounds; a bias has none."""
        return self.temperature.bound(scalars)

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """See `activity.warnings`."""
        return activity.warnings(metrics, {})

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
            "execution": Execution(
                config.exchange, config.block, column_axis() if self.lexical else None
            ),
        }
        terms = self.sides.terms(config.terms)
        values, metrics = {}, {}
        for term in terms:
            query, query_there = self.sides.points(reps, batch, term.query)
            document, document_there = self.sides.points(reps, batch, term.document)
            values[term.name], found = loss(
                query,
                document,
                there=(query_there, document_there),
                negatives=_negatives(reps, batch),
                **common,
            )
            metrics = metrics or found
        if len(terms) > 1:
            metrics = metrics | {f"loss_{name}": value for name, value in values.items()}
        return functools.reduce(jnp.add, values.values()), metrics


def _negatives(reps: Reps, batch: Batch) -> Negatives | None:
    """The hard negatives that came with the rows; documents then have one field."""
    if reps.negatives is None:
        return None
    (points,) = reps.negatives.points.values()  # [B, K, M, N]
    return Negatives(points, valid=batch.negatives_valid)


@dataclass(frozen=True)
class ContrastiveObjective(_PairObjective):
    """Symmetric cross-entropy of tau * score over the global batch (oblique paper, Eq. 2).

    Attributes:
      config: what known pairs count as, what is divided by, and how the loss is computed.
    """

    config: Contrastive

    def __call__(
        self, reps: Reps, batch: Batch, scalars: Scalars, step: jax.Array | int = 0
    ) -> Result:
        """See `contrastive_loss`; adds tau to the metrics, and how sparse lexical fields are."""
        tau = self.temperature.tau(scalars)
        c = self.config
        one = functools.partial(contrastive_loss, divide_by=c.divide_by, directions=c.directions)
        loss, metrics = self._sum_of_terms(one, reps, batch, c, tau)
        if self.lexical:
            penalty, found = sparsity(c.sparsity, self.sides, reps, batch, step)
            loss, metrics = loss + penalty, metrics | found
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
        self, reps: Reps, batch: Batch, scalars: Scalars, step: jax.Array | int = 0
    ) -> Result:
        """See `sigmoid_loss`; adds tau and the bias to the metrics."""
        del step
        tau, bias = self.temperature.tau(scalars), scalars["bias"]
        inside = self.config.weight_inside
        one = functools.partial(sigmoid_loss, bias=bias, weight_inside=inside)
        loss, metrics = self._sum_of_terms(one, reps, batch, self.config, tau)
        return loss, {**metrics, "temperature": tau, "bias": bias}


def make_objective(config: Config) -> Objective:
    """The objective of a checked config."""
    parts = make_sides(config), LearnedTemperature(config.temperature), config.labels.normalise
    if isinstance(config.loss, Vdr):
        return VdrObjective(*parts, config.loss)
    lexical = is_lexical(config)
    if isinstance(config.loss, Sigmoid):
        return SigmoidObjective(*parts, lexical, config.loss)
    return ContrastiveObjective(*parts, lexical, config.loss)
