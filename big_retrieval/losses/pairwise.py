"""All pairs of a batch for a loss: labels, statistics of every row, and the means over pairs.

What a loss over pairs of one's own is made of: a `Reduction` (`losses/tiles.py`) says what it reads
of the logits, and `Pairs.statistics` computes that tile by tile on any mesh.
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
from big_retrieval.losses.core import BlockwiseInputs, Exchange, Labels, make_core
from big_retrieval.losses.tiles import FalseNegatives, Reduction
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
    def labels(self) -> Labels:
        """What the loss needs to know of the rows; ids only where they change something.

        Raises:
          UserError: ids are missing.
        """
        rows = self.query_values.shape[0]
        if self.false_negatives != "keep" and self.query_id is None and self.document_id is None:
            raise UserError(
                f"false_negatives {self.false_negatives!r} needs query_id or document_id: without "
                "ids no false negative can be found."
            )
        keep, negatives, valid = self.false_negatives == "keep", self.negatives, self.valid
        query, document = (None if x is None else jnp.asarray(x, bool) for x in self.present)
        weight = self.weight
        return Labels(
            valid=jnp.ones(rows, bool) if valid is None else jnp.asarray(valid).astype(bool),
            query_present=query,
            document_present=document,
            negatives_valid=None if negatives is None else negatives.valid,
            query_id=None if keep else self.query_id,
            document_id=None if keep else self.document_id,
            negatives_id=None if negatives is None or keep else negatives.document_id,
            weight=None if weight is None else jax.lax.stop_gradient(jnp.asarray(weight)),
            query_terms=self.query.terms if isinstance(self.query, SparseRows) else None,
        )

    def statistics(self, reduction: Reduction) -> tuple[dict[str, Any], jax.Array]:
        """What a loss reads of all logits but the positives', and the positives' logits [B].

        Args:
          reduction: of the loss.

        Returns:
          `query` and `document`, the reduction's finished statistics [B] of both sides; and
          logit_scale * score + bias of every pair.

        Raises:
          UserError: sides of different shapes; ids that are missing; rows that do not divide over
            the devices of the mesh.
        """
        self._check_shapes()
        query, document, negatives = self.query_values, self.document, self.negatives
        dtype, bias = jnp.promote_types(jnp.result_type(query, document), jnp.float32), self.bias
        axis = self.execution.feature_axis
        sparse = isinstance(self.query, SparseRows)
        # Queries that a TPU makes dense come in whole registers, so documents do, too.
        lanes = LANES if sparse and traced_platform() == "tpu" else 1
        pad = functools.partial(pad_terms, axis=axis, lanes=lanes)
        inputs = BlockwiseInputs(
            documents=pad(document.astype(dtype)),
            queries=query.astype(dtype) if sparse else pad(query.astype(dtype)),
            negatives=None if negatives is None else pad(negatives.embeddings.astype(dtype)),
            logit_scale=jnp.asarray(self.logit_scale, dtype),
            bias=None if bias is None else jnp.asarray(bias, dtype),
        )
        sweep = blockwise.SweepSettings(
            topology=self.topology,
            reduction=reduction,
            false_negatives=self.false_negatives,
            block=self.execution.block or blockwise.block_size(self.topology, document.shape),
            feature_axis=axis,
        )
        core = make_core(sweep, inputs, self.execution.exchange)
        found: dict[str, Any] = exchange.statistics(core, inputs, self.labels)
        positive = inputs.logit_scale * found["positive"]
        return found, positive if inputs.bias is None else positive + inputs.bias

    def weights(self, positive: jax.Array) -> jax.Array:
        """Weights of the pairs, [B], in the type of the positives' logits [B]."""
        weight = self.labels.weight
        return jnp.ones_like(positive) if weight is None else weight.astype(positive.dtype)

    @property
    def query_values(self) -> jax.Array:
        """The queries' embeddings, of sparse rows their values [B, K]."""
        return self.query.values if isinstance(self.query, SparseRows) else self.query

    def _check_shapes(self) -> None:
        """Raises where the sides do not fit."""
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
