"""The loss of VDR, a part of `config.losses`."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from big_retrieval.config.heads import LOCAL_TOP_K
from big_retrieval.config.loss import PairLoss
from big_retrieval.config.ranges import AtLeast0, NotNegative
from big_retrieval.config.registry import register

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.losses.function import LossFunction


@dataclass(frozen=True)
class TermMask:
    """The contrastive mask (VDR, section 3.3): inactive terms are shared out among the batch."""

    # the terms that have it; the VDR paper's: "gated", its authors' code: "bag"
    apply: Literal["none", "gated", "bag", "both"] = "none"
    source: Literal["gate", "bag"] = "gate"  # what makes a query's term active
    weight: NotNegative = 1.0  # of a term that a bag of words is given
    normalise: bool = False  # a row's share to norm 1, before the weight


@register("loss")
@dataclass(frozen=True)
class Vdr(PairLoss):
    """The loss of VDR over lexical representations (Eq. 5): gated queries, dense documents."""

    type: Literal["vdr"] = "vdr"
    # k, terms that the gate of training leaves besides a text's own words; None: all
    top_k: AtLeast0 | None = 768
    symmetric: bool = False  # four terms, documents gated, too, as in the authors' later model
    top_k_document: AtLeast0 | None = None  # k of the documents of four terms; None: as `top_k`
    bag: bool = True  # the nonparametric entry: queries as bags of words
    bag_norm: bool = False  # these to norm 1; else binary
    mask: TermMask = field(default_factory=TermMask)
    directions: Literal["both", "query"] = "both"
    # the paper sums directions and terms, its authors' code takes means: a quarter of it
    reduction: Literal["sum", "mean"] = "sum"
    divide_by: Literal["weights", "rows"] = "weights"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.lexical(config):
            mine = self.compares(config)
            heads = {name: field.head for name, field in config.fields.items() if name in mine}
            name = next(n for n, head in heads.items() if not head.lexical)
            yield (
                f"{path}.type 'vdr' compares lexical representations: set config.fields."
                f"{name}.head.type to 'lexical', or take another loss."
            )
        mask = self.mask
        if self.false_negatives == "positives" and mask.apply != "none":
            yield f"{path}.mask.apply goes with false_negatives 'keep' or 'mask' only."
        if mask.apply in ("bag", "both") and not self.bag:
            yield f"{path}.mask.apply is {mask.apply!r}, but {path}.bag is False: set it to True."
        yield from self._words(config, path)

    def _words(self, config: "Config", path: str) -> Iterator[str]:
        """Sides whose words the loss takes have some."""
        masked = self.mask.apply != "none" and self.mask.source == "bag"
        gates = self.top_k, top_k_of_documents(self)
        needs = {  # what takes words -> what to do about it
            "query": {
                f"{path}.bag to False": self.bag,
                f"{path}.mask.source to 'gate'": masked,
                f"{path}.top_k above 0": gates[0] == 0,
            },
            "document": {
                f"{path}.symmetric to False": self.symmetric and (self.bag or gates[1] == 0),
            },
        }
        for side in ("query", "document"):
            fields = (config.fields[name] for name in self.fields(config, side))
            texts = [field for field in fields if field.modality == "text"]
            wanted = [remedy for remedy, needed in needs[side].items() if needed]
            if wanted and not texts:
                yield (
                    f"{path} takes the words of the {side} side, which has no text field: turn "
                    f"the sides around (config.fields.<field>.side), or set {' and '.join(wanted)}."
                )

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.pair_losses import VdrLoss

        return VdrLoss.make(self, config)

    def runlocal(self) -> "Vdr":
        """See `Loss`; gates for the vocabulary of generated scenes."""
        tops = {"top_k": self.top_k, "top_k_document": self.top_k_document}
        smaller = {key: min(top_k, LOCAL_TOP_K) for key, top_k in tops.items() if top_k is not None}
        return dataclasses.replace(self, **smaller)


def top_k_of_documents(config: Vdr) -> int | None:
    """k of the documents' gate; None: it leaves all terms."""
    return config.top_k if config.top_k_document is None else config.top_k_document
