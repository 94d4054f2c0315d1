"""Contrastive losses over all pairs of a global batch, in bounded memory.

`contrastive_loss` is the one symmetric cross-entropy of this codebase and `sigmoid_loss` its
sibling. Both read the logits of all pairs tile by tile, forward and backward, so neither holds a
[B, B] array (`losses/blockwise.py`), and both run on any mesh: under `jax.set_mesh` the sides are
sharded over its axes data and fsdp and one of them visits all devices (`losses/exchange.py`).
Global batch semantics everywhere: N devices give what one gives.
"""

import functools
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import FalseNegatives
from big_retrieval.config.topologies import Topology
from big_retrieval.losses.function import Result
from big_retrieval.losses.pairwise import (
    AUTO,
    Execution,
    Negatives,
    PairBatch,
    Present,
    accuracy,
    mean,
)
from big_retrieval.losses.tiles import SigmoidReduction, SoftmaxReduction, positive_cost
from big_retrieval.sparse.gate import SparseRows


def contrastive_loss(
    query: jax.Array | SparseRows,
    document: jax.Array,
    *,
    topology: Topology,
    logit_scale: jax.Array | float,
    weight: jax.Array | None = None,
    valid: jax.Array | None = None,
    present: Present = (None, None),
    divide_by: Literal["weights", "rows"] = "weights",
    directions: Literal["both", "query"] = "both",
    negatives: Negatives | None = None,
    query_id: jax.Array | None = None,
    document_id: jax.Array | None = None,
    false_negatives: FalseNegatives = "keep",
    execution: Execution = AUTO,
) -> Result:
    """Symmetric cross-entropy over all pairs of a batch.

    "Design of the Topology for Contrastive Visual-Textual Alignment", Eq. 2. Row i of `query` and
    row i of `document` belong together; every other row of the batch is a negative. With the logits
    s_ij = logit_scale * score(query_i, document_j),

      L_i = 1/2 [H(t_i., softmax(s_i.)) + H(t_.i, softmax(s_.i))],    loss = sum_i w_i L_i / sum w_i

    H the cross-entropy, t the target: all on the positive. Extra negatives are further columns of
    the first softmax; the sides may change places, e.g. for negatives among the queries.

    Where two different pairs have the same query or the same document, the query of one with the
    document of the other is a false negative by id. "keep": it counts as a negative, as in the
    papers. "mask": it leaves the denominators. "positives": the target is shared among all
    positives of a row in proportion to their weights: t_ij ~ w of the pair that (query_i,
    document_j) is.

    Args:
      query: projected embeddings, [B, M, N] or [B, V]; sparse rows of V columns are sent as they
        are.
      document: projected embeddings of the same shape; [B, V] with sparse queries.
      topology: scores them; higher is closer; not yet scaled.
      logit_scale: multiplier of the scores, []; differentiable.
      weight: weights of the pairs as anchors, [B], not negative, without gradient; a pair of weight
        0 stays a negative of the others.
      valid: bool [B]; rows that are False are padding: neither anchors nor negatives, whatever they
        hold.
      present: bool [B] of the queries and of the documents, None where all are: one that is
        absent is neither anchor nor negative and its pair adds nothing, but it counts as a row.
      divide_by: sum w of the pairs that are present, or the number of valid rows (GCL, Eq. 4).
      directions: L_i as above, or the first entropy alone, without the half.
      negatives: extra documents.
      query_id: int [B], equal for equal queries; negative where unknown.
      document_id: int [B], the same of documents.
      false_negatives: what false negatives by id count as.
      execution: how it is computed.

    Returns:
      The loss [] in the embeddings' type (0 when no row counts), and metrics [] without gradient:
      `accuracy`, the share of valid rows whose positive scores strictly above all their negatives,
      averaged over the directions.

    Raises:
      UserError: sides of different shapes; ids that are missing; rows that do not divide over the
        devices of the mesh.
    """
    pairs = PairBatch(
        query, document, topology, logit_scale, weight=weight, valid=valid, present=present,
        negatives=negatives, query_id=query_id, document_id=document_id,
        false_negatives=false_negatives, execution=execution,
    )  # fmt: skip
    shared_target = false_negatives == "positives"
    found, positive = pairs.statistics(SoftmaxReduction(shared_target))
    weights, counted = pairs.weights(positive), pairs.labels.pairs_counted()
    sides = ("query", "document") if directions == "both" else ("query",)
    losses = [_entropy(found[side], positive, weights, shared_target) for side in sides]
    losses = functools.reduce(jnp.add, losses) / len(losses)  # [B]
    losses, weights = jnp.where(counted, losses, 0), jnp.where(counted, weights, 0)
    total = jnp.sum(weights if divide_by == "weights" else pairs.labels.valid.astype(weights.dtype))
    loss = jnp.sum(weights * losses) / jnp.where(total > 0, total, 1)
    return loss, {"accuracy": accuracy(found, positive, counted, sides)}


def _entropy(
    stats: Mapping[str, jax.Array], positive: jax.Array, weights: jax.Array, shared_target: bool
) -> jax.Array:
    """Cross-entropy [B] of the rows of one side, from the statistics of their logits.

    Args:
      stats: of the side.
      positive: logits of the positives, [B].
      weights: weights of the pairs, [B].
      shared_target: whether the target is shared among all positives of a row.
    """
    partition = jnp.logaddexp(stats["others"], positive)
    if not shared_target:
        return partition - positive
    total = weights + stats["share"]
    return partition - (weights * positive + stats["dot"]) / jnp.where(total > 0, total, 1)


def sigmoid_loss(
    query: jax.Array,
    document: jax.Array,
    *,
    topology: Topology,
    logit_scale: jax.Array | float,
    bias: jax.Array | float,
    weight: jax.Array | None = None,
    weight_inside: bool = False,
    valid: jax.Array | None = None,
    present: Present = (None, None),
    negatives: Negatives | None = None,
    query_id: jax.Array | None = None,
    document_id: jax.Array | None = None,
    false_negatives: FalseNegatives = "keep",
    execution: Execution = AUTO,
) -> Result:
    """Every pair of a query and a document of the batch as a binary decision.

    "Sigmoid Loss for Language Image Pre-Training", Algorithm 1. With the logits
    s_ij = logit_scale * score(query_i, document_j) + bias and z = 1 for positives, -1 for all
    others,

      loss = -1/n sum_ij w_ij log sigmoid(z_ij s_ij),    n the number of valid pairs

    where w is the weight of a positive and 1 for negatives. "Generalized contrastive
    learning", Eq. 6, has the weight of positives inside, log sigmoid(w_ii s_ii), and -b where the
    bias is added here. False negatives by id (see `contrastive_loss`) count
    as negatives, not at all, or as positives with the weight of the pair that they are.

    Args:
      bias: added to the scaled scores, []; differentiable.
      query: see `contrastive_loss`, as for all arguments that are not listed here.
      weight_inside: as Eq. 6 has it; a pair of weight 0 adds nothing then, too.

    Returns:
      The loss [] and the metrics of `contrastive_loss`.

    Raises:
      UserError: see `contrastive_loss`.
    """
    pairs = PairBatch(
        query, document, topology, logit_scale, bias, weight, valid, present, negatives, query_id,
        document_id, false_negatives, execution,
    )  # fmt: skip
    found, positive = pairs.statistics(SigmoidReduction(weight_inside))
    weights, counted = pairs.weights(positive), pairs.labels.pairs_counted()
    cost = found["query"]["cost"] + jnp.where(
        counted, positive_cost(positive, weights, weight_inside), 0
    )
    valid = pairs.labels.valid
    loss = mean(jnp.where(valid, cost, 0), valid.astype(positive.dtype))
    return loss, {"accuracy": accuracy(found, positive, counted, ("query", "document"))}
