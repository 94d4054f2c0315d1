"""Averages the fields of the query and of the document, and lists the terms of a loss.

"Generalized contrastive learning", Eq. 5: with m fields of the query and n of the document a loss
has m n + 1 terms, one for the averages of both sides and one for every pair of fields. The terms
read the fields' embeddings as they are, without a stacked copy.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, PairLoss
from big_retrieval.config.loss import Terms
from big_retrieval.config.topologies import Topology, topology_part

# [B, M, N], and bool [B]: the rows that have an embedding (None: all).
Embeddings = tuple[jax.Array, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Term:
    """One comparison of the two sides.

    Attributes:
      name: `average`, or `<query field>_<document field>`.
      query: the fields that make the query's embeddings.
      document: those that make the document's.
    """

    name: str
    query: tuple[str, ...]
    document: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class QueryAndDocumentFields:
    """The query fields and the document fields that a loss compares.

    Attributes:
      topology: averages embeddings.
      weights: field name -> its weight in the average of its side.
      query: names of the query's fields.
      document: names of the document's.
      renormalise: whether an average is brought back onto the topology.
      from_raw: whether raw embeddings are projected here, because the loss has another topology
        than the run.
    """

    topology: Topology
    weights: dict[str, float]
    query: tuple[str, ...]
    document: tuple[str, ...]
    renormalise: bool = False
    from_raw: bool = False

    def embedding(self, reps: Reps, name: str) -> jax.Array:
        """The embeddings of a field in the topology, [B, M, N]; of hard negatives [B, K, M, N]."""
        return self.topology.project(reps.raw[name]) if self.from_raw else reps.embeddings[name]

    def terms(self, which: Terms) -> tuple[Term, ...]:
        """The terms of a loss, the average first; a single term where each side has one field."""
        pairs = itertools.product(self.query, self.document)
        single = [Term(f"{q}_{d}", (q,), (d,)) for q, d in pairs]
        if len(single) == 1:
            return tuple(single)
        average = [Term("average", self.query, self.document)] if which != "pairs" else []
        return (*average, *(single if which != "average" else ()))

    def embeddings(self, reps: Reps, batch: Batch, fields: Sequence[str]) -> Embeddings:
        """The weighted average of some fields of a side, or the one field itself.

        A field that a row lacks does not count for the row; the weights of its other fields are
        divided by their sum. A row without any of the fields is absent.

        Args:
          reps: embeddings by field.
          batch: `fields[name]["present"]`, bool [B], says which rows have an optional field.
          fields: their names, of one side.
        """
        present = [batch.fields[name].get("present") for name in fields]
        if len(fields) == 1:
            return self.embedding(reps, fields[0]), present[0]
        embeddings = [self.embedding(reps, name) for name in fields]
        rows = embeddings[0].shape[0]
        weights = jnp.stack(
            [
                jnp.full(rows, self.weights[name], embeddings[0].dtype)
                * (1 if mask is None else mask)
                for name, mask in zip(fields, present, strict=True)
            ]
        )  # [F, B]
        average = self.topology.combine(embeddings, weights)  # [B, M, N]
        if self.renormalise:
            average = self.topology.project(average)
        if any(mask is None for mask in present):  # a field that every row has
            return average, None
        return average, jnp.sum(weights, axis=0) > 0


def make_sides(config: Config, loss: PairLoss) -> QueryAndDocumentFields:
    """The sides that a loss of a checked config compares."""
    weights = {name: field.weight for name, field in config.fields.items()}
    own = loss.other_topology(config) or config.topology_of(*loss.compares(config))
    return QueryAndDocumentFields(
        topology_part(own),
        weights,
        query=loss.fields(config, "query"),
        document=loss.fields(config, "document"),
        renormalise=loss.renormalise,
        from_raw=bool(loss.other_topology(config)),
    )


def pair_weights(batch: Batch, normalise: bool) -> jax.Array | None:
    """The weights of the batch's pairs [B], or None where all are 1.

    Args:
      batch: with or without `weight`.
      normalise: divide them by their mean over the valid rows.
    """
    if batch.weight is None or not normalise:
        return batch.weight
    count = jnp.sum(batch.valid)
    total = jnp.sum(jnp.where(batch.valid, batch.weight, 0))
    return batch.weight * jnp.where(total > 0, count / jnp.where(total > 0, total, 1), 0)
