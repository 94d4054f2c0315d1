"""Base class of losses over all pairs (query, document) of a global batch.

It averages the fields of each side and lists the terms of a loss. With m query fields and n
document fields, "Generalized contrastive learning", Eq. 5, has m n + 1 terms: one for the averages
of both sides and one for every pair of fields. The terms read the fields' embeddings without a
stacked copy.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import AtLeast1, Config, Loss, Positive, is_lexical
from big_retrieval.config.topologies import Topology, topology_part
from big_retrieval.losses import activity
from big_retrieval.losses.context import Context, Result, Scalars
from big_retrieval.losses.core import Exchange
from big_retrieval.losses.pairwise import Execution, Negatives, PairBatch
from big_retrieval.losses.tiles import FalseNegatives
from big_retrieval.sparse.sharded import term_axis

Side = Literal["query", "document"]
Terms = Literal["all", "average", "pairs"]
# [B, M, N], and bool [B]: the rows that have an embedding (None for all).
Embeddings = tuple[jax.Array, jax.Array | None]


@dataclass(frozen=True)
class LogitScale:
    """Multiplier of a loss's scores, the inverse of the temperature.

    The learned parameter `scalars/<loss>/logit_scale` is its logarithm, as in CLIP.
    """

    init: Positive = 1 / 0.07
    learnable: bool = True
    min: Positive | None = None
    max: Positive | None = 100.0

    def check(self, path: str) -> Iterator[str]:
        """Yields an error message if the initial value is out of bounds; `path` names the group."""
        if self.max is not None and self.init > self.max * (1 + 1e-6):
            yield f"{path}.init {self.init:g} is above {path}.max {self.max:g}. Lower it."
        if self.min is not None and self.init < self.min * (1 - 1e-6):
            yield f"{path}.init {self.init:g} is below {path}.min {self.min:g}. Raise it."

    def bound(self, t: jax.Array) -> jax.Array:
        """Clips the logarithm to the logarithms of the bounds, as after every step in open_clip."""
        if not self.learnable:
            return t
        return jnp.clip(t, *(None if x is None else math.log(x) for x in (self.min, self.max)))

    def value(self, t: jax.Array) -> jax.Array:
        """Returns the multiplier [] of its logarithm."""
        return jnp.exp(t if self.learnable else jax.lax.stop_gradient(t))


@dataclass(frozen=True)
class PairLoss(Loss):
    """Base class of losses over all pairs (query, document) of the global batch."""

    query: tuple[str, ...] = ()  # query fields to compare; () for all
    document: tuple[str, ...] = ()  # document fields; () for all
    topology: str = ""  # type of the scores' topology; empty for config.topology
    logit_scale: LogitScale = field(default_factory=LogitScale)
    # treatment of false negatives by id; auto: mask if ids come from shared contents
    # (`labels.duplicates`), keep if they come from the columns of `labels`
    false_negatives: Literal["auto", FalseNegatives] = "auto"
    renormalise: bool = False  # project the average of several fields onto the topology again
    exchange: Exchange = "auto"  # how queries reach all devices; auto: by their size
    block: AtLeast1 | None = None  # rows and columns scored at a time; None for the best size

    def check(self, config: Config, path: str) -> Iterator[str]:
        for side in ("query", "document"):
            available = config.side(side)
            for name in getattr(self, side):
                if name not in available:
                    fields = ", ".join(available) or "none"
                    yield f"{path}.{side}: {name!r} is not a {side} field. Choices: {fields}."
        if self.topology:
            topology = topology_part(self.topology, f"{path}.topology")
            yield from topology.check(config, f"{path}.topology")
        yield from self.logit_scale.check(f"{path}.logit_scale")

    def fields(self, config: Config, side: Side) -> tuple[str, ...]:
        """Returns the names of the compared fields of a side."""
        return getattr(self, side) or config.side(side)

    def compares(self, config: Config) -> tuple[str, ...]:
        return (*self.fields(config, "query"), *self.fields(config, "document"))

    def other_topology(self, config: Config) -> str:
        of_fields = config.topology_of(*self.compares(config))
        same = ("", getattr(of_fields, "type", of_fields))
        return self.topology if self.topology not in same else ""

    def lexical(self, config: Config) -> bool:
        """Returns True if all compared fields have lexical heads."""
        return is_lexical(config, *self.compares(config))

    def scalars(self) -> dict[str, float]:
        """Returns `logit_scale`. A loss without this scalar has the multiplier 1."""
        return {"logit_scale": math.log(self.logit_scale.init)}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        bound = self.logit_scale.bound
        return {name: bound(x) if name == "logit_scale" else x for name, x in scalars.items()}

    def multiplier(self, context: Context) -> jax.Array:
        """Returns the multiplier of the scores, []."""
        t = context.scalars.get("logit_scale")
        return jnp.ones(()) if t is None else self.logit_scale.value(t)

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        return activity.warnings(metrics, {})

    def sum_of_terms(
        self, context: Context, loss: Callable[[PairBatch], Result], terms: Terms = "average"
    ) -> Result:
        """Returns a loss summed over the terms of the fields (GCL, Eq. 5).

        The metrics come from the first term. Several terms also have the metrics `loss_<term>`.
        """
        selected = self.terms_of(context.config, terms)
        values, metrics = {}, {}
        for name, sides in selected.items():
            values[name], of_term = loss(self.pair_batch(context, *sides))
            metrics = metrics or of_term
        if len(selected) > 1:
            metrics = metrics | {f"loss_{name}": value for name, value in values.items()}
        return functools.reduce(jnp.add, values.values()), metrics

    def terms_of(
        self, config: Config, terms: Terms
    ) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Returns term -> its query fields and its document fields, the average first.

        With one field on each side there is a single term, `<query field>_<document field>`.
        """
        query, document = self.fields(config, "query"), self.fields(config, "document")
        pairs = {f"{q}_{d}": ((q,), (d,)) for q, d in itertools.product(query, document)}
        if len(pairs) == 1:
            return pairs
        average = {"average": (query, document)} if terms != "pairs" else {}
        return average | (pairs if terms != "average" else {})

    def pair_batch(
        self, context: Context, query: Sequence[str] = (), document: Sequence[str] = ()
    ) -> PairBatch:
        """Returns the pairs of the averages of fields, by default of all compared fields."""
        batch, config = context.batch, context.config
        queries = self.embeddings(context, query or self.fields(config, "query"))
        documents = self.embeddings(context, document or self.fields(config, "document"))
        false_negatives = self.false_negatives
        if false_negatives == "auto":
            labels = config.labels
            by_content = not (labels.query or labels.document) and batch.query_id is not None
            false_negatives = "mask" if by_content else "keep"
        return PairBatch(
            queries[0],
            documents[0],
            topology=self._topology_of(config),
            logit_scale=self.multiplier(context),
            weight=pair_weights(batch, config.labels.normalise),
            valid=batch.valid,
            present=(queries[1], documents[1]),
            negatives=self._negatives(context),
            query_id=batch.query_id,
            document_id=batch.document_id,
            false_negatives=false_negatives,
            execution=Execution(
                self.exchange, self.block, term_axis() if self.lexical(config) else None
            ),
        )

    def embeddings(self, context: Context, names: Sequence[str]) -> Embeddings:
        """Returns the weighted average of some fields of a side, or the only field as is.

        If a row lacks a field, the average is over the row's other fields. A row without any of
        the fields is absent.
        """
        config, fields = context.config, context.batch.fields
        present = [fields[name].get("present") for name in names]
        embeddings = [self._embedding(config, context.reps, name) for name in names]
        if len(names) == 1:
            return embeddings[0], present[0]
        rows, dtype = embeddings[0].shape[0], embeddings[0].dtype
        weights = [
            jnp.full(rows, config.fields[name].weight, dtype) * (1 if mask is None else mask)
            for name, mask in zip(names, present, strict=True)
        ]
        weights, topology = jnp.stack(weights), self._topology_of(config)  # [F, B]
        average = topology.combine(embeddings, weights)  # [B, M, N]
        if self.renormalise:
            average = topology.project(average)
        if any(mask is None for mask in present):  # every row has this field
            return average, None
        return average, jnp.sum(weights, axis=0) > 0

    def words(self, context: Context) -> dict[str, jax.Array]:
        """Returns side -> int32 [B, L], the terms of all its texts, -1 for no term.

        "negatives" has [B, K, L]. Sides without a text are left out.
        """
        reps, config, words = context.reps, context.config, {}
        for side in ("query", "document"):
            bow = [reps.bow[name] for name in self.fields(config, side) if name in reps.bow]
            words |= {side: jnp.concatenate(bow, axis=1)} if bow else {}
        if reps.negatives is not None and reps.negatives.bow:
            (words["negatives"],) = reps.negatives.bow.values()
        return words

    def _topology_of(self, config: Config) -> Topology:
        other = self.other_topology(config)
        return topology_part(other or config.topology_of(*self.compares(config)))

    def _embedding(self, config: Config, reps: Reps, name: str) -> jax.Array:
        """Returns the embeddings of a field, [B, M, N], or of hard negatives, [B, K, M, N]."""
        if self.other_topology(config):
            return self._topology_of(config).project(reps.raw[name])
        return reps.embeddings[name]

    def _negatives(self, context: Context) -> Negatives | None:
        """Returns the hard negatives of the rows, if any; documents then have one field."""
        reps, batch = context.reps.negatives, context.batch
        if reps is None:
            return None
        (name,) = reps.embeddings
        if name not in self.fields(context.config, "document"):
            return None
        embeddings = self._embedding(context.config, reps, name)
        return Negatives(embeddings, batch.negatives_valid, batch.negatives_id)


def pair_weights(batch: Batch, normalise: bool) -> jax.Array | None:
    """Returns the weights of the batch's pairs [B], or None if all are 1.

    Args:
      normalise: divide them by their mean over the valid rows.
    """
    if batch.weight is None or not normalise:
        return batch.weight
    count = jnp.sum(batch.valid)
    total = jnp.sum(jnp.where(batch.valid, batch.weight, 0))
    return batch.weight * jnp.where(total > 0, count / jnp.where(total > 0, total, 1), 0)
