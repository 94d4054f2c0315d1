"""The base class of losses over all pairs of a batch, and the learned scale of their logits."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, FalseNegatives, PairLoss
from big_retrieval.config.loss import LogitScale, Terms
from big_retrieval.losses import activity
from big_retrieval.losses.fields import QueryAndDocumentFields, make_sides, pair_weights
from big_retrieval.losses.function import Context, LossFunction, Result, Scalars
from big_retrieval.losses.pairwise import Execution, Negatives
from big_retrieval.sparse.sharded import term_axis

P = TypeVar("P", bound=PairLoss)


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


@dataclass(frozen=True)
class PairLossFunction(LossFunction, Generic[P]):
    """The base class of losses over all pairs of a batch.

    Attributes:
      part: the part of the configuration.
      sides: the fields of both sides; scores their embeddings.
      logit_scale: the multiplier of the scores.
      normalise: whether the weights of a batch are divided by their mean.
      lexical: whether the fields have lexical heads.
      by_content: whether ids of the rows, where there are some, say what records hold.
    """

    part: P
    sides: QueryAndDocumentFields
    logit_scale: LearnedLogitScale
    normalise: bool
    lexical: bool
    by_content: bool = False

    @classmethod
    def make(cls, part: P, config: Config) -> Self:
        """Builds the loss of one part of a checked config."""
        sides, logit_scale = make_sides(config, part), LearnedLogitScale(part.logit_scale)
        labels = config.labels
        by_content = not (labels.query or labels.document)
        return cls(part, sides, logit_scale, labels.normalise, part.lexical(config), by_content)

    def scalars(self) -> dict[str, float]:
        """`logit_scale`."""
        return self.logit_scale.scalars()

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """Clips the logit scale to its bounds; other scalars have no bounds."""
        return self.logit_scale.bound(scalars)

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """See `activity.warnings`."""
        return activity.warnings(metrics, {})

    def sum_of_terms(
        self, loss: Callable[..., Result], context: Context, terms: Terms, logit_scale: jax.Array
    ) -> Result:
        """A loss summed over the terms that the fields make (GCL, Eq. 5).

        The metrics are those of the first term; of several terms also `loss_<term>` of each.
        """
        part, batch, reps = self.part, context.batch, context.reps
        axis = term_axis() if self.lexical else None
        common = {
            "topology": self.sides.topology,
            "logit_scale": logit_scale,
            "weight": pair_weights(batch, self.normalise),
            "valid": batch.valid,
            "query_id": batch.query_id,
            "document_id": batch.document_id,
            "false_negatives": self.false_negatives(batch),
            "execution": Execution(part.exchange, part.block, axis),
        }
        chosen = self.sides.terms(terms)
        values, metrics = {}, {}
        for term in chosen:
            query, query_present = self.sides.embeddings(reps, batch, term.query)
            document, document_present = self.sides.embeddings(reps, batch, term.document)
            values[term.name], found = loss(
                query,
                document,
                present=(query_present, document_present),
                negatives=self._negatives(reps, batch),
                **common,
            )
            metrics = metrics or found
        if len(chosen) > 1:
            metrics = metrics | {f"loss_{name}": value for name, value in values.items()}
        return functools.reduce(jnp.add, values.values()), metrics

    def false_negatives(self, batch: Batch) -> FalseNegatives:
        """What false negatives by id count as in a batch; "auto" is decided here."""
        if self.part.false_negatives != "auto":
            return self.part.false_negatives
        return "mask" if self.by_content and batch.query_id is not None else "keep"

    def _negatives(self, reps: Reps, batch: Batch) -> Negatives | None:
        """The hard negatives of the rows, if any; documents then have one field."""
        if reps.negatives is None:
            return None
        (name,) = reps.negatives.embeddings
        if name not in self.sides.document:
            return None
        embeddings = self.sides.embedding(reps.negatives, name)  # [B, K, M, N]
        return Negatives(embeddings, batch.negatives_valid, batch.negatives_id)
