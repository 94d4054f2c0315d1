"""Contrastive losses over all pairs of a global batch, in bounded memory.

`contrastive_loss` is the one symmetric cross-entropy of this codebase and `sigmoid_loss` its
sibling. Both read the logits of all pairs tile by tile, forward and backward, so neither holds a
[B, B] array (`losses/blockwise.py`), and both run on any mesh: under `jax.set_mesh` the sides are
sharded over its axes data and fsdp and one of them visits all devices (`losses/exchange.py`).
Global batch semantics everywhere: N devices give what one gives.
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
    """Factors of the FLOPS regulariser of lexical representations (SPLADE), for each side."""

    query: NotNegative = 0.0
    document: NotNegative = 0.0
    warmup_steps: AtLeast0 = 0  # over which they grow, with the square of the steps

    def penalty(self, pairs: PairBatch, step: jax.Array | int) -> Result:
        """Returns lambda FLOPS(side) of both sides, [], and FLOPS of those with a factor.

        Args:
          pairs: lexical embeddings [B, V].
          step: number of finished steps.
        """
        total, metrics = jnp.zeros(()), {}
        share = jnp.minimum(1.0, step / self.warmup_steps) ** 2 if self.warmup_steps else 1.0
        if self.query:
            metrics["flops_query"] = activity.flops(pairs.query_values, pairs.counted["query"])
            total = total + share * self.query * metrics["flops_query"]
        if self.document:
            metrics["flops_document"] = activity.flops(pairs.document, pairs.counted["document"])
            total = total + share * self.document * metrics["flops_document"]
        return total, metrics


@register("loss")
@dataclass(frozen=True)
class Contrastive(PairLoss):
    """Symmetric cross-entropy over the global batch; over several fields, GCL's Eq. 5."""

    type: Literal["contrastive"] = "contrastive"
    divide_by: Literal["weights", "rows"] = (
        "weights"  # the sum of weighted losses; rows: GCL, Eq. 4
    )
    # with several fields a side: of their average, of every pair of them, or the sum of both
    terms: Terms = "all"
    directions: Literal["both", "query"] = "both"  # query: of queries over documents alone
    sparsity: Sparsity = field(default_factory=Sparsity)  # of lexical representations

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        for side in ("query", "document"):
            value, key = getattr(self.sparsity, side), f"{path}.sparsity.{side}"
            if value and not self.lexical(config):
                yield f"{key} is {value}, but there are no lexical heads; set it to 0."

    def __call__(self, context: Context) -> Result:
        one = functools.partial(
            contrastive_loss, divide_by=self.divide_by, directions=self.directions
        )
        loss, metrics = self.sum_of_terms(context, one, self.terms)
        if self.lexical(context.config):
            pairs = self.pair_batch(context).flat()
            penalty, found = self.sparsity.penalty(pairs, context.step)
            loss, metrics = loss + penalty, metrics | found
            metrics |= activity.of_sides(context, pairs, self.words(context), {})
        return loss, {**metrics, "logit_scale": self.multiplier(context)}


@register("loss")
@dataclass(frozen=True)
class Sigmoid(PairLoss):
    """Sigmoid loss of all pairs of the global batch (SigLIP); weighted, GCL's Eq. 6."""

    type: Literal["sigmoid"] = "sigmoid"
    bias: float = -10.0  # start of the learned `scalars/<loss>/bias`; minus the b of GCL's Eq. 6
    weight_inside: bool = False  # a weight multiplies the logit of its pair (Eq. 6), not the loss
    terms: Terms = "all"

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "bias": self.bias}

    def __call__(self, context: Context) -> Result:
        bias = context.scalars["bias"]

        def one(pairs: PairBatch) -> Result:
            return sigmoid_loss(dataclasses.replace(pairs, bias=bias), self.weight_inside)

        loss, metrics = self.sum_of_terms(context, one, self.terms)
        return loss, {**metrics, "logit_scale": self.multiplier(context), "bias": bias}


def contrastive_loss(
    pairs: PairBatch,
    divide_by: Literal["weights", "rows"] = "weights",
    directions: Literal["both", "query"] = "both",
) -> Result:
    """Symmetric cross-entropy over all pairs of a batch.

    "Design of the Topology for Contrastive Visual-Textual Alignment", Eq. 2. Row i of `query` and
    row i of `document` belong together; every other row of the batch is a negative. With the logits
    s_ij = logit_scale * score(query_i, document_j),

      L_i = 1/2 [H(t_i., softmax(s_i.)) + H(t_.i, softmax(s_.i))],    loss = sum_i w_i L_i / sum w_i

    H the cross-entropy, t the target: all on the positive. Extra negatives are further columns of
    the first softmax; the sides may change places, e.g. for negatives among the queries.

    If two different pairs have the same query or the same document, the query of one with the
    document of the other is a false negative by id. "keep": it counts as a negative, as in the
    papers. "mask": it leaves the denominators. "positives": the target is shared among all
    positives of a row in proportion to their weights: t_ij ~ w of the pair that (query_i,
    document_j) is.

    Args:
      divide_by: sum w of the pairs that are present, or the number of valid rows (GCL, Eq. 4).
      directions: L_i as above, or the first entropy alone, without the half.

    Returns:
      The loss [] in the embeddings' type (0 when no row counts), and metrics [] without gradient:
      `accuracy`, the share of valid rows whose positive scores strictly above all their negatives,
      averaged over the directions.

    Raises:
      UserError: see `PairBatch.statistics`.
    """
    shared_target = pairs.false_negatives == "positives"
    found, positive = pairs.statistics(SoftmaxReduction(shared_target))
    weights, counted = pairs.weights(positive), pairs.counted["pair"]
    sides = ("query", "document") if directions == "both" else ("query",)
    losses = [_entropy(found[side], positive, weights, shared_target) for side in sides]
    losses = functools.reduce(jnp.add, losses) / len(losses)  # [B]
    losses, weights = jnp.where(counted, losses, 0), jnp.where(counted, weights, 0)
    total = jnp.sum(weights if divide_by == "weights" else pairs.valid_rows.astype(weights.dtype))
    loss = jnp.sum(weights * losses) / jnp.where(total > 0, total, 1)
    return loss, {"accuracy": accuracy(found, positive, counted, sides)}


def _entropy(
    stats: Mapping[str, jax.Array], positive: jax.Array, weights: jax.Array, shared_target: bool
) -> jax.Array:
    """Cross-entropy [B] of the rows of one side, from the statistics of their logits.

    Args:
      positive: logits of the positives, [B].
      weights: weights of the pairs, [B].
      shared_target: True if the target is shared among all positives of a row.
    """
    partition = jnp.logaddexp(stats["others"], positive)
    if not shared_target:
        return partition - positive
    total = weights + stats["share"]
    return partition - (weights * positive + stats["dot"]) / jnp.where(total > 0, total, 1)


def sigmoid_loss(pairs: PairBatch, weight_inside: bool = False) -> Result:
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
      weight_inside: as Eq. 6 has it; a pair of weight 0 adds nothing then, too.

    Returns:
      The loss [] and the metrics of `contrastive_loss`.

    Raises:
      UserError: see `PairBatch.statistics`.
    """
    found, positive = pairs.statistics(SigmoidReduction(weight_inside))
    weights, counted = pairs.weights(positive), pairs.counted["pair"]
    cost = found["query"]["cost"] + jnp.where(
        counted, positive_cost(positive, weights, weight_inside), 0
    )
    valid = pairs.valid_rows
    loss = mean(jnp.where(valid, cost, 0), valid.astype(positive.dtype))
    return loss, {"accuracy": accuracy(found, positive, counted, ("query", "document"))}
