"""The losses over pairs as parts: contrastive with SPLADE's regulariser, sigmoid, and VDR's."""

import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Contrastive, Sigmoid, Sparsity, Vdr
from big_retrieval.config.vdr import top_k_of_documents
from big_retrieval.losses import activity
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.fields import QueryAndDocumentFields, pair_weights
from big_retrieval.losses.function import Context, Result, metrics_if_logged
from big_retrieval.losses.pairs import PairLossFunction
from big_retrieval.losses.pairwise import Execution
from big_retrieval.losses.vdr import LexicalBatch, vdr_loss
from big_retrieval.sparse.sharded import term_axis


class ContrastiveLoss(PairLossFunction[Contrastive]):
    """Symmetric cross-entropy of the scaled scores over the global batch (oblique, Eq. 2)."""

    def __call__(self, context: Context) -> Result:
        """See `contrastive_loss`; adds the logit scale and the sparsity of lexical fields."""
        part, scale = self.part, self.logit_scale.value(context.scalars)
        one = functools.partial(
            contrastive_loss, divide_by=part.divide_by, directions=part.directions
        )
        loss, metrics = self.sum_of_terms(one, context, part.terms, scale)
        if self.lexical:
            penalty, found = sparsity(part.sparsity, self.sides, context)
            loss, metrics = loss + penalty, metrics | found
        return loss, {**metrics, "logit_scale": scale}


class SigmoidLoss(PairLossFunction[Sigmoid]):
    """Every query with every document a binary decision on logit_scale * score + bias (SigLIP)."""

    def scalars(self) -> dict[str, float]:
        """`logit_scale` and `bias`."""
        return {**super().scalars(), "bias": self.part.bias}

    def __call__(self, context: Context) -> Result:
        """See `sigmoid_loss`; adds the logit scale and the bias to the metrics."""
        scale, bias = self.logit_scale.value(context.scalars), context.scalars["bias"]
        inside = self.part.weight_inside
        one = functools.partial(sigmoid_loss, bias=bias, weight_inside=inside)
        loss, metrics = self.sum_of_terms(one, context, self.part.terms, scale)
        return loss, {**metrics, "logit_scale": scale, "bias": bias}


class VdrLoss(PairLossFunction[Vdr]):
    """See `vdr_loss`."""

    def __call__(self, context: Context) -> Result:
        """The loss; adds the logit scale and what the gate of each side leaves to the metrics."""
        reps, batch, scale = context.reps, context.batch, self.logit_scale.value(context.scalars)
        query, query_present = lexical_side(self.sides, reps, batch, "query")
        document, document_present = lexical_side(self.sides, reps, batch, "document")
        loss, metrics = vdr_loss(
            self.part,
            query,
            document,
            self._lexical_negatives(reps),
            logit_scale=scale,
            weight=pair_weights(batch, self.normalise),
            valid=batch.valid,
            present=(query_present, document_present),
            negatives_valid=batch.negatives_valid,
            negatives_id=batch.negatives_id,
            query_id=batch.query_id,
            document_id=batch.document_id,
            false_negatives=self.false_negatives(batch),
            execution=Execution(self.part.exchange, self.part.block, term_axis()),
        )
        for name, side, present in (
            ("query", query, query_present),
            ("document", document, document_present),
        ):
            metrics |= _active(name, side, context, present, self._gates[name])[0]
        return loss, {**metrics, "logit_scale": scale}

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """See `activity.warnings`."""
        return activity.warnings(metrics, self._gates)

    @property
    def _gates(self) -> dict[str, int]:
        """k of both sides; of documents only watched where they are compared dense."""
        tops = {"query": self.part.top_k, "document": top_k_of_documents(self.part)}
        return {side: activity.ALL if top_k is None else top_k for side, top_k in tops.items()}

    def _lexical_negatives(self, reps: Reps) -> LexicalBatch | None:
        if reps.negatives is None:
            return None
        ((name, embeddings),) = reps.negatives.embeddings.items()  # [B, K, 1, V]
        if name not in self.sides.document:
            return None
        flat = embeddings.reshape(*embeddings.shape[:2], -1)
        return LexicalBatch(flat, reps.negatives.bow.get(name))


def lexical_side(
    sides: QueryAndDocumentFields, reps: Reps, batch: Batch, side: str
) -> tuple[LexicalBatch, jax.Array | None]:
    """One side's dense representations with their words, and which rows have any.

    Of several fields: their weighted average, and all of their words.

    Args:
      sides: the fields of both sides and their weights.
      reps: embeddings and words by field.
      batch: says which rows have optional fields.
      side: "query" or "document".
    """
    names = sides.query if side == "query" else sides.document
    embeddings, present = sides.embeddings(reps, batch, names)
    bow = [reps.bow[name] for name in names if name in reps.bow]
    flat = embeddings.reshape(len(embeddings), -1)  # [B, V]
    return LexicalBatch(flat, jnp.concatenate(bow, axis=1) if bow else None), present


def _active(
    name: str, side: LexicalBatch, context: Context, present: jax.Array | None, top_k: int | None
) -> tuple[dict[str, jax.Array], jax.Array]:
    """`activity` of a side under its name, and which rows count, bool [B]."""
    batch, side = context.batch, jax.lax.stop_gradient(side)
    valid = batch.valid if present is None else batch.valid & present
    found = metrics_if_logged(
        context.logged, lambda: activity.activity(side.embeddings, side.bow, valid, top_k)
    )
    return {f"{metric}_{name}": value for metric, value in found.items()}, valid


def sparsity(config: Sparsity, sides: QueryAndDocumentFields, context: Context) -> Result:
    """The regulariser of both sides at a step, [], and what they have active.

    lambda_side * FLOPS(side) each, lambda growing with the square of the steps done.

    Args:
      config: the factors and their warm-up.
      sides: the fields of both sides.
      context: dense representations, which rows are valid, and steps that are done.
    """
    total, metrics = jnp.zeros(()), {}
    reps, batch, step = context.reps, context.batch, context.step
    share = jnp.minimum(1.0, step / config.warmup_steps) ** 2 if config.warmup_steps else 1.0
    for name, factor in (("query", config.query), ("document", config.document)):
        side, present = lexical_side(sides, reps, batch, name)
        found, valid = _active(name, side, context, present, None)
        metrics |= found
        if factor:
            metrics[f"flops_{name}"] = activity.flops(side.embeddings, valid)
            total = total + share * factor * metrics[f"flops_{name}"]
    return total, metrics
