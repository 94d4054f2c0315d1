"""Contrastive and sigmoid losses as parts; see `losses/contrastive.py` for their formulas."""

import functools

from big_retrieval.config import Contrastive, Sigmoid
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.function import Context, Result
from big_retrieval.losses.lexical_losses import sparsity
from big_retrieval.losses.pairs import PairLossFunction


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
            penalty, found = sparsity(
                part.sparsity, self.sides, context.reps, context.batch, context.step
            )
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
