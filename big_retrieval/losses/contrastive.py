"""Contrastive losses over all pairs of a global batch, in bounded memory.

`contrastive_loss` is the one symmetric cross-entropy of this codebase and `sigmoid_loss` its
sibling. Both read cells (pairs of rows) block by block, forward and backward, so neither holds a
[B, B] array (`losses/blockwise.py`), and both run on any mesh: under `jax.set_mesh` the sides are
spread over its axes data and fsdp and one of them travels (`losses/exchange.py`). Global batch
semantics everywhere: N devices give what one gives.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp

from big_retrieval.config import Exchange, FalseNegatives
from big_retrieval.errors import UserError
from big_retrieval.gate import Compact
from big_retrieval.losses import blockwise, exchange
from big_retrieval.losses.cells import Reduction, Sigmoid, Softmax, positive_cost
from big_retrieval.losses.core import Inputs, Labels, make_core
from big_retrieval.losses.function import Result
from big_retrieval.similarity import Topology
from big_retrieval.spreading import pad_columns

There = tuple[jax.Array | None, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a loss is computed; changes its value by rounding only.

    Attributes:
      exchange: how queries reach other devices' documents: "gather", "ring", or "auto" by size.
      block: rows and columns scored at a time; None fits the block's scores to the backend.
      feature_axis: mesh axis that the last axis of the points is spread over, if any (a vocabulary
        over `tensor`, see `spreading.column_axis`); only for topologies whose scores add up over
        features. Devices then hold, multiply and send a part of the columns, and the scores of a
        block are summed over the axis.
    """

    exchange: Exchange = "auto"
    block: int | None = None
    feature_axis: str | None = None


@flax.struct.dataclass
class Negatives:
    """Extra documents that belong to no query of the batch: further columns of every query.

    Attributes:
      points: [B, K, M, N] or [B, K, V]; row i came with pair i and is a negative of all queries.
      valid: bool [B, K] or None; those of rows that are not valid never count.
      document_id: int32 [B, K] or None.
    """

    points: jax.Array
    valid: jax.Array | None = None
    document_id: jax.Array | None = None


def contrastive_loss(
    query: jax.Array | Compact,
    document: jax.Array,
    *,
    topology: Topology,
    scale: jax.Array | float,
    weight: jax.Array | None = None,
    valid: jax.Array | None = None,
    there: There = (None, None),
    divide_by: Literal["weights", "rows"] = "weights",
    directions: Literal["both", "query"] = "both",
    negatives: Negatives | None = None,
    query_id: jax.Array | None = None,
    document_id: jax.Array | None = None,
    false_negatives: FalseNegatives = "keep",
    execution: Execution = Execution(),
) -> Result:
    """Symmetric cross-entropy over all pairs of a batch.

    "Design of the Topology for Contrastive Visual-Textual Alignment", Eq. 2. Row i of `query` and
    row i of `document` belong together; every other row of the batch is a negative. With the logits
    s_ij = scale * score(query_i, document_j),

      L_i = 1/2 [H(t_i., softmax(s_i.)) + H(t_.i, softmax(s_.i))],    loss = sum_i w_i L_i / sum w_i

    H the cross-entropy, t the target: all on the own pair. Extra negatives are further columns of
    the first softmax; the sides may change places, e.g. for negatives among the queries.

    Two different pairs with the same query or the same document make a known pair, a false
    negative of each other. "keep": it counts as a negative, as in the papers. "mask": it leaves
    the denominators. "positives": the target is spread over all known pairs of a row in proportion
    to their weights: t_ij ~ w of the pair that (query_i, document_j) is.

    Args:
      query: projected points, [B, M, N] or [B, V]; compact rows of V columns travel as they are.
      document: projected points of the same shape; [B, V] with compact queries.
      topology: scores them; higher is closer, without temperature.
      scale: multiplier of the scores (exp of the log temperature), []; differentiable.
      weight: weights of the pairs as anchors, [B], not negative, without gradient; a pair of weight
        0 stays a negative of the others.
      valid: bool [B]; rows that are False are padding: neither anchors nor negatives, whatever they
        hold.
      there: bool [B] of the queries and of the documents, None where all are: one that is not there
        is neither anchor nor negative and its pair adds nothing, but it counts as a row.
      divide_by: sum w of the pairs that are there, or the number of valid rows (GCL, Eq. 4).
      directions: L_i as above, or the first entropy alone, without the half.
      negatives: extra documents.
      query_id: int [B], equal for equal queries; negative where unknown.
      document_id: int [B], the same of documents.
      false_negatives: what known pairs count as.
      execution: how it is computed.

    Returns:
      The loss [] in the points' type (0 when no row counts), and metrics [] without gradient:
      `accuracy`, the share of valid rows whose own pair scores strictly above all their negatives,
      averaged over the directions.

    Raises:
      UserError: sides of different shapes; ids that are missing; rows that do not divide over the
        devices of the mesh.
    """
    labels = _labels(query, valid, there, weight, negatives, query_id, document_id, false_negatives)
    found, own = _statistics(
        Softmax(false_negatives == "positives"), query, document, topology, scale, None,
        negatives, labels, false_negatives, execution,
    )  # fmt: skip
    mass, pairs = _mass(labels, own), labels.pairs_counted()
    sides = ("query", "document") if directions == "both" else ("query",)
    spread_out = false_negatives == "positives"
    losses = [_entropy(found[side], own, mass, spread_out) for side in sides]
    losses = functools.reduce(jnp.add, losses) / len(losses)  # [B]
    losses, mass = jnp.where(pairs, losses, 0), jnp.where(pairs, mass, 0)
    total = jnp.sum(mass if divide_by == "weights" else labels.valid.astype(mass.dtype))
    loss = jnp.sum(mass * losses) / jnp.where(total > 0, total, 1)
    return loss, {"accuracy": _accuracy(found, own, pairs, sides)}


def _entropy(
    stats: Mapping[str, jax.Array], own: jax.Array, mass: jax.Array, spread_out: bool
) -> jax.Array:
    """Cross-entropy [B] of the rows of one side, from the statistics of their cells.

    Args:
      stats: of the side.
      own: logits of the own pairs, [B].
      mass: weights of the pairs, [B].
      spread_out: whether the target is spread over all known pairs of a row.
    """
    partition = jnp.logaddexp(stats["others"], own)
    if not spread_out:
        return partition - own
    total = mass + stats["share"]
    return partition - (mass * own + stats["dot"]) / jnp.where(total > 0, total, 1)


def sigmoid_loss(
    query: jax.Array,
    document: jax.Array,
    *,
    topology: Topology,
    scale: jax.Array | float,
    bias: jax.Array | float,
    weight: jax.Array | None = None,
    weight_inside: bool = False,
    valid: jax.Array | None = None,
    there: There = (None, None),
    negatives: Negatives | None = None,
    query_id: jax.Array | None = None,
    document_id: jax.Array | None = None,
    false_negatives: FalseNegatives = "keep",
    execution: Execution = Execution(),
) -> Result:
    """Every cell of the batch as a binary decision.

    "Sigmoid Loss for Language Image Pre-Training", Algorithm 1. With the logits
    s_ij = scale * score(query_i, document_j) + bias and z = 1 for own pairs, -1 for all others,

      loss = -1/n sum_ij w_ij log sigmoid(z_ij s_ij),    n the number of valid pairs

    where w is the pair's weight for own pairs and 1 for negatives. "Generalized contrastive
    learning", Eq. 6, has the weight of own pairs inside, log sigmoid(w_ii s_ii), and -b where the
    bias is added here. Known pairs (see `contrastive_loss`) count as
    negatives, not at all, or as own pairs with the weight of the pair that they are.

    Args:
      bias: added to the scaled scores, []; differentiable.
      query: see `contrastive_loss`, as for all other arguments.
      document: projected points.
      topology: scores them.
      scale: multiplier of the scores.
      weight: weights of the pairs, [B].
      weight_inside: as Eq. 6 has it; a pair of weight 0 adds nothing then, too.
      valid: bool [B].
      there: bool [B] of both sides.
      negatives: extra documents: further cells of every query.
      query_id: int [B].
      document_id: int [B].
      false_negatives: what known pairs count as.
      execution: how it is computed.

    Returns:
      The loss [] and the metrics of `contrastive_loss`.

    Raises:
      UserError: see `contrastive_loss`.
    """
    labels = _labels(query, valid, there, weight, negatives, query_id, document_id, false_negatives)
    found, own = _statistics(
        Sigmoid(weight_inside), query, document, topology, scale, bias,
        negatives, labels, false_negatives, execution,
    )  # fmt: skip
    mass = _mass(labels, own)
    pairs = labels.pairs_counted()
    cost = found["query"]["cost"] + jnp.where(pairs, positive_cost(own, mass, weight_inside), 0)
    loss = _mean(jnp.where(labels.valid, cost, 0), labels.valid.astype(own.dtype))
    return loss, {"accuracy": _accuracy(found, own, pairs, ("query", "document"))}


def _labels(
    query: jax.Array | Compact,
    valid: jax.Array | None,
    there: There,
    weight: jax.Array | None,
    negatives: Negatives | None,
    query_id: jax.Array | None,
    document_id: jax.Array | None,
    false_negatives: FalseNegatives,
) -> Labels:
    """The labels that the cells need; ids only where they change something."""
    rows = _points(query).shape[0]
    if false_negatives != "keep" and query_id is None and document_id is None:
        raise UserError(
            f"false_negatives {false_negatives!r} needs query_id or document_id: without ids no "
            "pair is known."
        )
    keep = false_negatives == "keep"
    query_there, document_there = (None if x is None else jnp.asarray(x, bool) for x in there)
    return Labels(
        valid=jnp.ones(rows, bool) if valid is None else jnp.asarray(valid).astype(bool),
        query_there=query_there,
        document_there=document_there,
        negatives_valid=None if negatives is None else negatives.valid,
        query_id=None if keep else query_id,
        document_id=None if keep else document_id,
        negatives_id=None if negatives is None or keep else negatives.document_id,
        weight=None if weight is None else jax.lax.stop_gradient(jnp.asarray(weight)),
        query_columns=query.columns if isinstance(query, Compact) else None,
    )


def _statistics(
    reduction: Reduction,
    query: jax.Array | Compact,
    document: jax.Array,
    topology: Topology,
    scale: jax.Array | float,
    bias: jax.Array | float | None,
    negatives: Negatives | None,
    labels: Labels,
    false_negatives: FalseNegatives,
    execution: Execution,
) -> tuple[dict[str, Any], jax.Array]:
    """Statistics of both sides over all cells but the own pairs, and the own pairs' logits [B]."""
    _check_shapes(query, document, negatives)
    dense, query = not isinstance(query, Compact), _points(query)
    dtype = jnp.promote_types(jnp.result_type(query, document), jnp.float32)
    axis = execution.feature_axis
    inputs = Inputs(
        documents=pad_columns(document.astype(dtype), axis),
        queries=pad_columns(query.astype(dtype), axis if dense else None),
        negatives=None if negatives is None else pad_columns(negatives.points.astype(dtype), axis),
        scale=jnp.asarray(scale, dtype),
        bias=None if bias is None else jnp.asarray(bias, dtype),
    )
    sweep = blockwise.Sweep(
        topology=topology,
        reduction=reduction,
        false_negatives=false_negatives,
        block=execution.block or blockwise.block_size(topology, query.shape),
        feature_axis=axis,
    )
    core = make_core(sweep, inputs, execution.exchange)
    found: dict[str, Any] = exchange.statistics(core, inputs, labels)
    own = inputs.scale * found["own"]
    return found, own if inputs.bias is None else own + inputs.bias


def _points(query: jax.Array | Compact) -> jax.Array:
    return query.values if isinstance(query, Compact) else query


def _check_shapes(
    query: jax.Array | Compact, document: jax.Array, negatives: Negatives | None
) -> None:
    """Raises where the sides do not fit."""
    mine, rest = _points(query).shape, document.shape[1:]
    extra = rest if negatives is None else negatives.points.shape[2:]
    fits = len(rest) == 1 and mine[:1] == document.shape[:1]
    if not (fits if isinstance(query, Compact) else mine == document.shape) or extra != rest:
        others = "" if negatives is None else f" and extra negatives of {negatives.points.shape}"
        raise UserError(
            f"the loss pairs rows of the same shape, but was given queries of shape {mine}, "
            f"documents of {document.shape}{others}: give both sides one row per pair."
        )


def _mass(labels: Labels, own: jax.Array) -> jax.Array:
    """Weights of the pairs, [B]."""
    return jnp.ones_like(own) if labels.weight is None else labels.weight.astype(own.dtype)


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted mean of [B] values; 0 when all weights are 0."""
    total = jnp.sum(weights)
    return jnp.sum(weights * values) / jnp.where(total > 0, total, 1)


def _accuracy(
    found: dict[str, Any], own: jax.Array, valid: jax.Array, sides: Sequence[str]
) -> jax.Array:
    """Mean over the directions; a row without any negative is right."""
    right = [(own > found[side]["best"]).astype(own.dtype) for side in sides]
    first = functools.reduce(jnp.add, right) / len(right)
    return jax.lax.stop_gradient(_mean(first, valid.astype(own.dtype)))
