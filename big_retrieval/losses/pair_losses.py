"""Contrastive and sigmoid losses as parts; see `losses/contrastive.py` for their formulas."""

import functools

from big_retrieval.config import Contrastive, Sigmoid
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.function import Context, Result
from big_retrieval.losses.lexical_losses import sparsity
from big_retrieval.losses.pairs import PairLossFunction


class ContrastiveLoss(PairLossFunction[Contrastive]):
    """Symmetric cross-entropy of tau * score over the global batch (oblique paper, Eq. 2)."""

    def __call__(self, context: Context) -> Result:
        """See `contrastive_loss`; adds tau to the metrics, and how sparse lexical fields are."""
        part, tau = self.part, self.temperature.tau(context.scalars)
        one = functools.partial(
            contrastive_loss, divide_by=part.divide_by, directions=part.directions
        )
        loss, metrics = self.sum_of_terms(one, context, part.terms, tau)
        if self.lexical:
            penalty, found = sparsity(
                part.sparsity, self.sides, context.reps, context.batch, context.step
            )
            loss, metrics = loss + penalty, metrics | found
        return loss, {**metrics, "temperature": tau}


class SigmoidLoss(PairLossFunction[Sigmoid]):
    """Every cell of the global batch a binary decision on tau * score + bias (SigLIP)."""

    def scalars(self) -> dict[str, float]:
        """`temperature` and `bias`."""
        return {**super().scalars(), "bias": self.part.bias}

    def __call__(self, context: Context) -> Result:
        """See `sigmoid_loss`; adds tau and the bias to the metrics."""
        tau, bias = self.temperature.tau(context.scalars), context.scalars["bias"]
        inside = self.part.weight_inside
        one = functools.partial(sigmoid_loss, bias=bias, weight_inside=inside)
        loss, metrics = self.sum_of_terms(one, context, self.part.terms, tau)
        return loss, {**metrics, "temperature": tau, "bias": bias}
