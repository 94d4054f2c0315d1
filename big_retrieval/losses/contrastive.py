"""Contrastive losses over all pairs of a global batch, in bounded memory.

`contrastive_loss` and `sigmoid_loss` read the logits of all pairs tile by tile, forward and
backward, without a [B, B] array (`losses/blockwise.py`). Under `jax.set_mesh`, the sides are
sharded over the axes data and fsdp, and one side visits all devices (`losses/exchange.py`). N
devices give the result of one.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import AtLeast0, Config, NotNegative, register
from big_retrieval.losses import activity
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.pairs import PairLoss, Terms
from big_retrieval.losses.pairwise import PairBatch, accuracy, mean
from big_retrieval.losses.tiles import SigmoidReduction, SoftmaxReduction, positive_cost


@dataclass(frozen=True)
class Sparsity:
    """Factors of the FLOPS regularizer of lexical representations (SPLADE), for each side."""

    query: NotNegative = 0.0
    document: NotNegative = 0.0
    warmup_steps: AtLeast0 = 0  # steps over which both grow quadratically from 0; 0 disables

    def penalty(self, pairs: PairBatch, step: jax.Array | int) -> Result:
        """Returns the sum of factor * FLOPS over both sides, [], and metrics `flops_<side>`."""
        total, metrics = jnp.zeros(()), {}
        share = jnp.minimum(1.0, step / self.warmup_steps) ** 2 if self.warmup_steps else 1.0
        for side, values, factor in (
            ("query", pairs.query_values, self.query),
            ("document", pairs.document, self.document),
        ):
            if factor:
                metrics[f"flops_{side}"] = activity.flops(values, pairs.counted[side])
                total = total + share * factor * metrics[f"flops_{side}"]
        return total, metrics


@register("loss")
@dataclass(frozen=True)
class Contrastive(PairLoss):
    """Symmetric cross-entropy over the global batch; over several fields, GCL's Eq. 5."""

    type: Literal["contrastive"] = "contrastive"
    # divisor of the sum of weighted losses: the sum of weights, or the number of rows (GCL, Eq. 4)
    divide_by: Literal["weights", "rows"] = "weights"
    # with several fields per side: "average": of their averages; "pairs": of every pair of fields,
    # added up; "all": the sum of both
    terms: Terms = "all"
    directions: Literal["both", "query"] = "both"  # query: only queries over documents
    sparsity: Sparsity = field(default_factory=Sparsity)  # regularizer of lexical representations

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        for side in ("query", "document"):
            value, key = getattr(self.sparsity, side), f"{path}.sparsity.{side}"
            if value and not self.lexical(config):
                yield f"{key} is {value}, but there are no lexical heads; set it to 0."

    def __call__(self, context: Context) -> Result:
        keys = {"divide_by": self.divide_by, "directions": self.directions}
        loss_of_term = functools.partial(contrastive_loss, **keys)
        loss, metrics = self.sum_of_terms(context, loss_of_term, self.terms)
        if self.lexical(context.config):
            pairs = self.pair_batch(context)
            penalty, flops = self.sparsity.penalty(pairs, context.step)
            loss, metrics = loss + penalty, metrics | flops
            metrics |= activity.of_sides(context, pairs, self.words(context), {})
        return loss, {**metrics, "logit_scale": self.multiplier(context)}


@register("loss")
@dataclass(frozen=True)
class Sigmoid(PairLoss):
    """Sigmoid loss of all pairs of the global batch (SigLIP); with weights, GCL's Eq. 6."""

    type: Literal["sigmoid"] = "sigmoid"
    bias: float = -10.0  # initial value of `scalars/<loss>/bias`; minus the b of GCL's Eq. 6
    weight_inside: bool = False  # a weight multiplies the logit of its pair (Eq. 6), not the loss
    terms: Terms = "all"

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "bias": self.bias}

    def __call__(self, context: Context) -> Result:
        bias = context.scalars["bias"]

        def loss_of_term(pairs: PairBatch) -> Result:
            return sigmoid_loss(dataclasses.replace(pairs, bias=bias), self.weight_inside)

        loss, metrics = self.sum_of_terms(context, loss_of_term, self.terms)
        return loss, {**metrics, "logit_scale": self.multiplier(context), "bias": bias}


def contrastive_loss(
    pairs: PairBatch,
    divide_by: Literal["weights", "rows"] = "weights",
    directions: Literal["both", "query"] = "both",
) -> Result:
    """Computes the symmetric cross-entropy over all pairs of a batch.

    "Design of the Topology for Contrastive Visual-Textual Alignment", Eq. 2. Row i of `query` and
    row i of `document` belong together; every other row of the batch is a negative. With the logits
    s_ij = logit_scale * score(query_i, document_j),

      L_i = 1/2 [H(t_i., softmax(s_i.)) + H(t_.i, softmax(s_.i))],    loss = sum_i w_i L_i / sum w_i

    H is the cross-entropy; the target t is 1 for the positive. Extra negatives are further columns
    of the first softmax. The sides may change places, e.g. for negatives among the queries.

    If two pairs have the same query or the same document, the query of one pair with the document
    of the other is a false negative by id. Values of `false_negatives`:

    * "keep": it counts as a negative, as in the papers.
    * "mask": it is left out of the denominators.
    * "positives": all positives of a row share the target. t_ij is proportional to w of the pair
      that (query_i, document_j) equals.

    Args:
      divide_by: sum of w over the present pairs, or the number of valid rows (GCL, Eq. 4).
      directions: "both": L_i as above; "query": only the first entropy, without 1/2.

    Returns:
      The loss [] in the embeddings' type (0 when no row counts), and metrics [] without gradient:
      `accuracy`, the share of valid rows whose positive scores strictly above all their negatives,
      averaged over the directions.
    """
    shared_target = pairs.false_negatives == "positives"
    stats, positive = pairs.statistics(SoftmaxReduction(shared_target))
    weights, counted = pairs.weights(positive), pairs.counted["pair"]
    sides = ("query", "document") if directions == "both" else ("query",)
    losses = [_entropy(stats[side], positive, weights, shared_target) for side in sides]
    losses = functools.reduce(jnp.add, losses) / len(losses)  # [B]
    losses, weights = jnp.where(counted, losses, 0), jnp.where(counted, weights, 0)
    total = jnp.sum(weights if divide_by == "weights" else pairs.valid_rows.astype(weights.dtype))
    loss = jnp.sum(weights * losses) / jnp.where(total > 0, total, 1)
    return loss, {"accuracy": accuracy(stats, positive, counted, sides)}


def _entropy(
    stats: Mapping[str, jax.Array], positive: jax.Array, weights: jax.Array, shared_target: bool
) -> jax.Array:
    """Returns the cross-entropy [B] of the rows of one side, from statistics of their logits."""
    partition = jnp.logaddexp(stats["others"], positive)
    if not shared_target:
        return partition - positive
    total = weights + stats["share"]
    return partition - (weights * positive + stats["dot"]) / jnp.where(total > 0, total, 1)


def sigmoid_loss(pairs: PairBatch, weight_inside: bool = False) -> Result:
    """Computes the loss of a binary decision for every pair of a query and a document.

    "Sigmoid Loss for Language Image Pre-Training", Algorithm 1. With the logits
    s_ij = logit_scale * score(query_i, document_j) + bias and z = 1 for positives, -1 for all
    others,

      loss = -1/n sum_ij w_ij log sigmoid(z_ij s_ij),    n the number of valid pairs

    where w is the weight of a positive, and 1 for negatives. "Generalized contrastive learning",
    Eq. 6, has the weight of positives inside, log sigmoid(w_ii s_ii), and -b instead of the added
    bias. False negatives by id (see `contrastive_loss`) count as negatives, not at all, or as
    positives with the weight of the pair that they equal.

    Args:
      weight_inside: as in Eq. 6; a pair of weight 0 still adds nothing.

    Returns:
      The loss [] and the metrics of `contrastive_loss`.
    """
    stats, positive = pairs.statistics(SigmoidReduction(weight_inside))
    weights, counted = pairs.weights(positive), pairs.counted["pair"]
    cost_of_pair = jnp.where(counted, positive_cost(positive, weights, weight_inside), 0)
    cost = stats["query"]["cost"] + cost_of_pair
    valid = pairs.valid_rows
    loss = mean(jnp.where(valid, cost, 0), valid.astype(positive.dtype))
    return loss, {"accuracy": accuracy(stats, positive, counted, ("query", "document"))}
