"""All pairs of a batch for a loss: labels, statistics of every row, and the means over pairs.

A custom loss over pairs defines a `Reduction` (`losses/tiles.py`), which reads the logits;
`PairBatch.statistics` computes it tile by tile on any mesh.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from big_retrieval.config.topologies import Topology
from big_retrieval.errors import UserError
from big_retrieval.losses import blockwise, exchange
from big_retrieval.losses.core import Exchange, TileSweep, on_mesh
from big_retrieval.losses.tiles import FalseNegatives, Reduction, SideRows
from big_retrieval.runtime.chips import LANES
from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse.gate import SparseRows
from big_retrieval.sparse.sharded import pad_terms

Present = tuple[jax.Array | None, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a loss is computed; changes its value by rounding only.

    Attributes:
      exchange: how queries reach other devices' documents: "gather", "ring", or "auto" by size.
      block: rows and columns of a tile; None fits the tile's scores to the backend.
      feature_axis: mesh axis that the last axis of the embeddings is sharded over, if any (a
        vocabulary over `tensor`, see `sharded.term_axis`); only for topologies whose scores add
        up over features. Devices then hold, multiply and send a part of the columns, and the scores
        of a tile are summed over the axis.
    """

    exchange: Exchange = "auto"
    block: int | None = None
    feature_axis: str | None = None


AUTO = Execution()


@flax.struct.dataclass
class Negatives:
    """Extra documents that belong to no query of the batch: further columns of every query.

    Attributes:
      embeddings: [B, K, M, N] or [B, K, V]; row i came with pair i and is a negative of all
        queries.
      valid: bool [B, K] or None; those of rows that are not valid never count.
      document_id: int32 [B, K] or None.
    """

    embeddings: jax.Array
    valid: jax.Array | None = None
    document_id: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class PairBatch:
    """Both sides of a batch, and labels of its rows; row i of both sides is a pair.

    Attributes:
      query: projected embeddings, [B, M, N] or [B, V]; sparse rows of V columns are sent as they
        are.
      document: projected embeddings of the same shape; [B, V] with sparse queries.
      topology: scores them; higher is closer; not yet scaled.
      logit_scale: multiplier of the scores, []; differentiable.
      bias: added to the scaled scores, []; differentiable. None: 0.
      weight: weights of the pairs as anchors, [B], not negative, without gradient; a pair of weight
        0 stays a negative of the others.
      valid: bool [B]; rows that are False are padding: neither anchors nor negatives, whatever they
        hold.
      present: bool [B] of the queries and of the documents, None where all are: one that is
        absent is neither anchor nor negative and its pair adds nothing, but it counts as a row.
      negatives: extra documents.
      query_id: int [B], equal for equal queries; negative where unknown.
      document_id: int [B], the same of documents.
      false_negatives: what false negatives by id count as, see `contrastive_loss`.
      execution: how it is computed.
    """

    query: jax.Array | SparseRows
    document: jax.Array
    topology: Topology
    logit_scale: jax.Array | float = 1.0
    bias: jax.Array | float | None = None
    weight: jax.Array | None = None
    valid: jax.Array | None = None
    present: Present = (None, None)
    negatives: Negatives | None = None
    query_id: jax.Array | None = None
    document_id: jax.Array | None = None
    false_negatives: FalseNegatives = "keep"
    execution: Execution = AUTO

    def flat(self) -> "PairBatch":
        """Returns lexical embeddings as [B, V] instead of [B, 1, V], of negatives as [B, K, V]."""
        query, document = (x.reshape(len(x), -1) for x in (self.query_values, self.document))
        negatives = self.negatives
        if negatives is not None:
            flat = negatives.embeddings.reshape(*negatives.embeddings.shape[:2], -1)
            negatives = dataclasses.replace(negatives, embeddings=flat)
        return dataclasses.replace(self, query=query, document=document, negatives=negatives)

    @functools.cached_property
    def valid_rows(self) -> jax.Array:
        """bool [B]: rows that are not padding."""
        rows = len(self.document)
        return jnp.ones(rows, bool) if self.valid is None else jnp.asarray(self.valid).astype(bool)

    @functools.cached_property
    def counted(self) -> dict[str, jax.Array]:
        """bool [B] of "query", "document" and "pair": rows where they are valid and present."""
        query, document = (
            self.valid_rows if mask is None else self.valid_rows & jnp.asarray(mask, bool)
            for mask in self.present
        )
        return {"query": query, "document": document, "pair": query & document}

    def weights(self, positive: jax.Array) -> jax.Array:
        """Returns the weights of the pairs, [B], in the type of the positives' logits [B]."""
        weight = self._anchor_weight
        return jnp.ones_like(positive) if weight is None else weight.astype(positive.dtype)

    def statistics(self, reduction: Reduction) -> tuple[dict[str, Any], jax.Array]:
        """Returns statistics of all logits except the positives', and the positives' logits [B].

        Returns:
          `query` and `document`, the reduction's finished statistics [B] of both sides; and
          logit_scale * score + bias of every pair.

        Raises:
          UserError: sides of different shapes; ids that are missing; rows that do not divide over
            the devices of the mesh.
        """
        self._check()
        documents, queries, negatives = self._sides()
        execution, dtype = self.execution, documents.embeddings.dtype
        scale, bias = jnp.asarray(self.logit_scale, dtype), self.bias
        bias = None if bias is None else jnp.asarray(bias, dtype)
        block = execution.block or blockwise.block_size(self.topology, self.document.shape)
        sweep = TileSweep(
            self.topology, reduction, self.false_negatives, block, execution.feature_axis
        )
        sweep = on_mesh(sweep, execution.exchange, queries)
        found: dict[str, Any] = exchange.statistics(
            sweep, (scale, bias), (documents, queries, negatives)
        )
        positive = scale * found["positive"]
        return found, positive if bias is None else positive + bias

    def _sides(self) -> exchange.Sides:
        """Documents, queries and extra negatives [B, K, ...]; ids only where they change a loss."""
        dtype = jnp.promote_types(jnp.result_type(self.query_values, self.document), jnp.float32)
        terms = self.query.terms if isinstance(self.query, SparseRows) else None
        # Queries that a TPU makes dense come in whole registers, so documents do, too.
        lanes = LANES if terms is not None and traced_platform() == "tpu" else 1
        pad = functools.partial(pad_terms, axis=self.execution.feature_axis, lanes=lanes)
        keep, values = self.false_negatives == "keep", self.query_values.astype(dtype)
        query_id, document_id = (None, None) if keep else (self.query_id, self.document_id)
        # A pair is recognized by its index in the global batch, wherever its query has travelled.
        documents = SideRows(
            pad(self.document.astype(dtype)),
            index=jnp.arange(len(self.document), dtype=jnp.int32),
            counted=self.counted["document"],
            query_id=query_id,
            document_id=_first(document_id),
            weight=self._anchor_weight,
        )
        queries = documents.replace(  # type: ignore
            embeddings=values if terms is not None else pad(values),
            counted=self.counted["query"],
            query_id=_first(query_id),
            document_id=document_id,
            terms=terms,
        )
        if self.negatives is None:
            return documents, queries, None
        embeddings, valid, ids = (
            getattr(self.negatives, key) for key in ("embeddings", "valid", "document_id")
        )
        shape = embeddings.shape[:2]  # [B, K]
        counted = jnp.broadcast_to(self.valid_rows[:, None], shape)
        # Different for each and below 0, so that none is taken for the positive of a query.
        index = -1 - (documents.index[:, None] * shape[1] + jnp.arange(shape[1], dtype=jnp.int32))
        nobody, weight = jnp.full(shape, -1, jnp.int32), self._anchor_weight
        negatives = SideRows(
            pad(embeddings.astype(dtype)),
            index,
            counted if valid is None else counted & valid,
            # The id -1 equals no id; their documents' ids may be known.
            query_id=None
            if query_id is None
            else jnp.full((*shape, *query_id.shape[1:]), -1, jnp.int32),
            document_id=None if document_id is None else nobody if ids is None else ids,
            # Never read: a weight of a document's row counts for equal queries only.
            weight=None if weight is None else jnp.zeros(shape, weight.dtype),
        )
        return documents, queries, negatives

    @property
    def _anchor_weight(self) -> jax.Array | None:
        return None if self.weight is None else jax.lax.stop_gradient(jnp.asarray(self.weight))

    @property
    def query_values(self) -> jax.Array:
        """The queries' embeddings, of sparse rows their values [B, K]."""
        return self.query.values if isinstance(self.query, SparseRows) else self.query

    def _check(self) -> None:
        """Raises a UserError if the sides do not fit, or ids are missing."""
        if self.false_negatives != "keep" and self.query_id is None and self.document_id is None:
            raise UserError(
                f"false_negatives {self.false_negatives!r} needs query_id or document_id: without "
                "ids no false negative can be found."
            )
        mine, rest = self.query_values.shape, self.document.shape[1:]
        extra = rest if self.negatives is None else self.negatives.embeddings.shape[2:]
        fits = mine == self.document.shape
        if isinstance(self.query, SparseRows):
            fits = len(rest) == 1 and mine[:1] == self.document.shape[:1]
        if not fits or extra != rest:
            shape = "" if self.negatives is None else self.negatives.embeddings.shape
            others = f" and extra negatives of {shape}" if shape else ""
            raise UserError(
                f"the loss pairs rows of the same shape, but was given queries of shape {mine}, "
                f"documents of {self.document.shape}{others}: give both sides one row per pair."
            )


def _first(ids: jax.Array | None) -> jax.Array | None:
    """The id [B] of each row's own query or document, of one or several [B, K]."""
    return ids if ids is None or ids.ndim == 1 else ids[:, 0]


def mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted mean of [B] values; 0 when all weights are 0."""
    total = jnp.sum(weights)
    return jnp.sum(weights * values) / jnp.where(total > 0, total, 1)


def accuracy(
    found: Mapping[str, Any], positive: jax.Array, valid: jax.Array, sides: Sequence[str]
) -> jax.Array:
    """Share of the rows whose positive scores strictly above all their negatives, [].

    Args:
      found: `best` of the statistics of each side, the largest logit of a negative.
      positive: logits of the positives, [B].
      valid: bool [B]; rows that count.
      sides: over which the mean is taken: "query", "document" or both.
    """
    right = [(positive > found[side]["best"]).astype(positive.dtype) for side in sides]
    first = functools.reduce(jnp.add, right) / len(right)
    return jax.lax.stop_gradient(mean(first, valid.astype(positive.dtype)))
