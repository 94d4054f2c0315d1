"""What the losses over all pairs of a batch share: one comparison, or several fields' terms."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from big_retrieval.batch import Reps
from big_retrieval.config import Config, PairLoss
from big_retrieval.config.loss import Terms
from big_retrieval.losses import activity
from big_retrieval.losses.fields import QueryAndDocumentFields, make_sides, pair_weights
from big_retrieval.losses.function import Context, LossFunction, Result, Scalars
from big_retrieval.losses.pairwise import Execution, Negatives
from big_retrieval.losses.temperature import LearnedTemperature
from big_retrieval.sparse.sharded import term_axis

P = TypeVar("P", bound=PairLoss)


@dataclass(frozen=True)
class PairLossFunction(LossFunction, Generic[P]):
    """What the losses over all pairs read and learn.

    Attributes:
      part: the part of the configuration.
      sides: the fields of both sides; scores their embeddings.
      temperature: the multiplier of the scores.
      normalise: whether the weights of a batch are divided by their mean.
      lexical: whether the fields have lexical heads.
    """

    part: P
    sides: QueryAndDocumentFields
    temperature: LearnedTemperature
    normalise: bool
    lexical: bool

    @classmethod
    def make(cls, part: P, config: Config) -> Self:
        """The function of a part of a checked config."""
        sides, temperature = make_sides(config, part), LearnedTemperature(part.temperature)
        return cls(part, sides, temperature, config.labels.normalise, part.lexical(config))

    def scalars(self) -> dict[str, float]:
        """`temperature`."""
        return self.temperature.scalars()

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The temperature within its bounds; other scalars have none."""
        return self.temperature.bound(scalars)

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """See `activity.warnings`."""
        return activity.warnings(metrics, {})

    def sum_of_terms(
        self, loss: Callable[..., Result], context: Context, terms: Terms, tau: jax.Array
    ) -> Result:
        """A loss summed over the terms that the fields make (GCL, Eq. 5).

        The metrics are those of the first term, and `loss_<term>` of each where there are several.
        """
        part, batch, reps = self.part, context.batch, context.reps
        axis = term_axis() if self.lexical else None
        common = {
            "topology": self.sides.topology,
            "scale": tau,
            "weight": pair_weights(batch, self.normalise),
            "valid": batch.valid,
            "query_id": batch.query_id,
            "document_id": batch.document_id,
            "false_negatives": part.false_negatives,
            "execution": Execution(part.exchange, part.block, axis),
        }
        chosen = self.sides.terms(terms)
        values, metrics = {}, {}
        for term in chosen:
            query, query_there = self.sides.points(reps, batch, term.query)
            document, document_there = self.sides.points(reps, batch, term.document)
            values[term.name], found = loss(
                query,
                document,
                there=(query_there, document_there),
                negatives=self._negatives(reps, batch.negatives_valid),
                **common,
            )
            metrics = metrics or found
        if len(chosen) > 1:
            metrics = metrics | {f"loss_{name}": value for name, value in values.items()}
        return functools.reduce(jnp.add, values.values()), metrics

    def _negatives(self, reps: Reps, valid: Any) -> Negatives | None:
        """The hard negatives that came with the rows; documents then have one field."""
        if reps.negatives is None:
            return None
        (name,) = reps.negatives.points
        if name not in self.sides.document:
            return None
        return Negatives(self.sides.embedding(reps.negatives, name), valid=valid)  # [B, K, M, N]
