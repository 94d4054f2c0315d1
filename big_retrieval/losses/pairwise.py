"""All pairs of a batch for a loss: labels, statistics of every row, and means over pairs.

A custom loss over pairs defines a `Reduction` (`losses/tiles.py`), which reads the logits;
`PairBatch.statistics` computes it tile by tile on any mesh.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
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
    """Settings for computing a loss. They change the loss only by rounding errors.

    Attributes:
      exchange: "gather" or "ring" moves the queries to the documents; "auto" chooses by size.
      block: number of rows and of columns of a tile; None for `blockwise.block_size`.
      feature_axis: mesh axis that shards the last axis of the embeddings, such as `tensor` for a
        vocabulary (see `sharded.term_axis`); None if it is not sharded. Devices then hold and send
        part of the columns, and sum the scores of each tile over the mesh axis. The score of the
        topology must be a sum over features.
    """

    exchange: Exchange = "auto"
    block: int | None = None
    feature_axis: str | None = None


AUTO = Execution()


@flax.struct.dataclass
class Negatives:
    """Extra documents that are negatives of all queries of the batch.

    Attributes:
      embeddings: [B, K, M, N]; row i was loaded with pair i.
      valid: bool [B, K] or None; negatives of padding rows never count.
      document_id: int32 [B, K] or None.
    """

    embeddings: jax.Array
    valid: jax.Array | None = None
    document_id: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class PairBatch:
    """Both sides of a batch, and labels of its rows; row i of both sides is a pair.

    Attributes:
      query: projected embeddings, [B, M, N]. Lexical embeddings may be `SparseRows`, which devices
        exchange in this form.
      document: projected embeddings of the same shape; [B, 1, V] with sparse queries.
      topology: computes the scores; higher is closer.
      logit_scale: multiplier of the scores, []; differentiable.
      bias: added to the scaled scores, []; differentiable. None for 0.
      weight: weights [B] of the losses of the pairs, at least 0, without gradient. A pair of weight
        0 is still a negative of the other pairs.
      valid: bool [B]; False for padding, which adds no loss, is not a negative and may have any
        value.
      present: two masks, bool [B], of the queries and of the documents; None if all are present.
        An absent query or document is not a negative, and its pair adds no loss, but its row still
        counts in means over rows.
      negatives: extra documents.
      query_id: int [B], equal for equal queries; negative if unknown.
      document_id: int [B], equal for equal documents; negative if unknown.
      false_negatives: see `contrastive_loss`.
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

    @functools.cached_property
    def valid_rows(self) -> jax.Array:
        """bool [B]: rows that are not padding."""
        rows = len(self.document)
        return jnp.ones(rows, bool) if self.valid is None else jnp.asarray(self.valid).astype(bool)

    @functools.cached_property
    def counted(self) -> dict[str, jax.Array]:
        """bool [B] of "query", "document" and "pair": rows that are valid and present."""
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

        The keys "query" and "document" have the finished statistics [B] of the reduction.

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
        stats: dict[str, Any] = exchange.statistics(
            sweep, (scale, bias), (documents, queries, negatives)
        )
        positive = scale * stats["positive"]
        return stats, positive if bias is None else positive + bias

    def _sides(self) -> exchange.Sides:
        """Returns both sides and extra negatives [B, K, ...]; ids only if they change the loss."""
        dtype = jnp.promote_types(jnp.result_type(self.query_values, self.document), jnp.float32)
        terms = self.query.terms if isinstance(self.query, SparseRows) else None
        # On a TPU, sparse queries become dense rows padded to full lanes: documents need the same.
        lanes = LANES if terms is not None and traced_platform() == "tpu" else 1
        pad = functools.partial(pad_terms, axis=self.execution.feature_axis, lanes=lanes)
        keep, values = self.false_negatives == "keep", self.query_values.astype(dtype)
        query_id, document_id = (None, None) if keep else (self.query_id, self.document_id)
        # The index in the global batch identifies a pair on every device.
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
        return documents, queries, self._negative_rows(self.negatives, documents, pad)

    def _negative_rows(
        self, negatives: Negatives, documents: SideRows, pad: Callable[[jax.Array], jax.Array]
    ) -> SideRows:
        """Returns the rows [B, K, ...] of the extra negatives of `documents`."""
        shape, ids = negatives.embeddings.shape[:2], negatives.document_id  # [B, K]
        counted = jnp.broadcast_to(self.valid_rows[:, None], shape)
        if negatives.valid is not None:
            counted = counted & negatives.valid
        query_id, weight = documents.query_id, documents.weight
        no_id = jnp.full(shape, -1, jnp.int32)  # does not equal any id
        if query_id is not None:
            query_id = jnp.full((*shape, *query_id.shape[1:]), -1, jnp.int32)
        return SideRows(
            pad(negatives.embeddings.astype(documents.embeddings.dtype)),
            # Unique and below 0, so that no negative equals the positive of a query.
            -1 - (documents.index[:, None] * shape[1] + jnp.arange(shape[1], dtype=jnp.int32)),
            counted,
            query_id=query_id,
            document_id=None if documents.document_id is None else no_id if ids is None else ids,
            # Never read: a document's weight counts only if its query id matches, and -1 does not.
            weight=None if weight is None else jnp.zeros(shape, weight.dtype),
        )

    @property
    def _anchor_weight(self) -> jax.Array | None:
        return None if self.weight is None else jax.lax.stop_gradient(jnp.asarray(self.weight))

    @property
    def query_values(self) -> jax.Array:
        """Embeddings of the queries; the values [B, K] of sparse rows."""
        return self.query.values if isinstance(self.query, SparseRows) else self.query

    def _check(self) -> None:
        """Raises a UserError if the sides do not fit, or ids are missing."""
        if self.false_negatives != "keep" and self.query_id is None and self.document_id is None:
            raise UserError(
                f"false_negatives {self.false_negatives!r} needs query_id or document_id."
            )
        query, document = self.query_values.shape, self.document.shape
        fits = query == document
        if isinstance(self.query, SparseRows):
            fits = document[:-1] == (query[0], 1)
        negatives = None if self.negatives is None else self.negatives.embeddings.shape
        if not fits or (negatives is not None and negatives[2:] != document[1:]):
            suffix = f" and extra negatives of shape {negatives}" if negatives else ""
            raise UserError(
                f"The loss needs one row per pair on both sides, but has queries of shape {query}, "
                f"documents of shape {document}{suffix}."
            )


def _first(ids: jax.Array | None) -> jax.Array | None:
    """Returns the first id [B] of each row, from ids [B] or [B, K]."""
    return ids if ids is None or ids.ndim == 1 else ids[:, 0]


def mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the weighted mean of values [B]; 0 if all weights are 0."""
    total = jnp.sum(weights)
    return jnp.sum(weights * values) / jnp.where(total > 0, total, 1)


def accuracy(
    stats: Mapping[str, Any], positive: jax.Array, valid: jax.Array, sides: Sequence[str]
) -> jax.Array:
    """Returns the share of rows whose positive scores strictly above all their negatives, [].

    Args:
      stats: statistics of each side with `best`, the largest logit of a negative.
      sides: sides of the mean: "query", "document" or both.
    """
    is_first = [(positive > stats[side]["best"]).astype(positive.dtype) for side in sides]
    share = functools.reduce(jnp.add, is_first) / len(is_first)
    return jax.lax.stop_gradient(mean(share, valid.astype(positive.dtype)))
