"""Losses, the parts of `config.losses`: what all of them have, and the two over pairs of rows.

The training loss is the sum over `config.losses` of weight * L, or of lambda * (L / bound - 1)
where a loss is a constraint (`losses/objective.py`).
"""

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, NotNegative, Positive, ShareBelow1
from big_retrieval.config.registry import Part, register
from big_retrieval.config.topologies import check_topology

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.losses.function import LossFunction

Exchange = Literal["auto", "gather", "ring"]
FalseNegatives = Literal["keep", "mask", "positives"]


@dataclass(frozen=True)
class LogitScale:
    """The multiplier of a loss's scores, the inverse of the temperature.

    The learned parameter `scalars/<loss>/logit_scale` is its logarithm, as in CLIP.
    """

    init: Positive = 1 / 0.07
    learnable: bool = True
    min: Positive | None = None
    max: Positive | None = 100.0


@dataclass(frozen=True)
class Constraint:
    """L <= bound instead of a weighted L: adds lambda * (L / bound - 1), lambda learned by ascent.

    "Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
    Retrieval", Eq. 9. See `losses/constraint.py` for the update of lambda.
    """

    bound: Positive | None = None  # the largest L that is wanted; None: no constraint
    start: float = 1.0  # of lambda
    min: float = 0.0  # lambda in the loss is never below,
    max: float | None = 100.0  # nor above these
    rate: Positive = 5e-3  # of the ascent
    momentum: ShareBelow1 = 0.9
    dampening: ShareBelow1 = 0.9  # of the gradient's share in the momentum; the first step has none
    # False: the raw value of lambda is clipped only where the loss reads it, and may run beyond
    # its range (as the paper's authors do); True: it is clipped after each step
    projected: bool = False
    warn_after: AtLeast1 = 1000  # steps in a row with L above the bound

    def check(self, path: str) -> Iterator[str]:
        """What is wrong with its keys, a sentence each; `path` names the group."""
        if self.max is not None and self.max <= self.min:
            yield f"{path}.max is {self.max}; it must be above {path}.min {self.min}."
        if self.start < self.min or (self.max is not None and self.start > self.max):
            yield f"{path}.start is {self.start}; it must be from {path}.min to {path}.max."


@dataclass(frozen=True)
class Loss(Part):
    """The base of all losses: their common keys, and what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("loss")`.
    """

    kind: ClassVar[str] = "loss"
    weight: float = 1.0  # in the sum of all losses
    constraint: Constraint = field(default_factory=Constraint)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys in this config, a sentence each.

        Args:
          config: of the run.
          path: of this loss, such as `config.losses.main`.
        """
        del config, path
        yield from ()

    @abc.abstractmethod
    def build(self, config: "Config", name: str) -> "LossFunction":
        """What computes it.

        Args:
          config: of the run, checked; its `tokenizer.vocab_size` is that of the tokenizer itself.
          name: of the loss in `config.losses`.
        """
        raise NotImplementedError

    def runlocal(self) -> "Loss":
        """The same for a model of a few thousand parameters."""
        return self

    def compares(self, config: "Config") -> tuple[str, ...]:
        """The fields that it compares with each other, whose embeddings must be of one shape."""
        del config
        return ()

    def other_topology(self, config: "Config") -> str:
        """The topology by which it scores where that is not the one of its fields; else ""."""
        del config
        return ""

    def reads_vectors(self, config: "Config") -> tuple[str, ...]:
        """The fields whose tower's vectors its module reads, as `Reps.vectors`."""
        del config
        return ()


def check_loss(loss: Loss, config: "Config", path: str) -> Iterator[str]:
    """What is wrong with the keys that all losses have, and then with its own."""
    if loss.weight <= 0:
        yield f"{path}.weight is {loss.weight}; it must be positive: remove a loss of no weight."
    if loss.constraint.bound is not None and loss.weight != 1:
        yield (
            f"{path} has a weight ({loss.weight}) and a constraint.bound "
            f"({loss.constraint.bound}): leave the weight at 1, or set the bound to None."
        )
    yield from loss.constraint.check(f"{path}.constraint")
    yield from loss.check(config, path)


@dataclass(frozen=True)
class PairLoss(Loss):
    """The base of losses over all pairs (query, document) of the global batch."""

    query: tuple[str, ...] = ()  # the query fields that it compares; (): all
    document: tuple[str, ...] = ()  # the document fields; (): all
    topology: str = ""  # type of the one by which it scores; empty: config.topology
    logit_scale: LogitScale = field(default_factory=LogitScale)
    # what false negatives by id count as; auto: by the columns of `labels` keep, by what records
    # share (`labels.duplicates`) mask
    false_negatives: Literal["auto", FalseNegatives] = "auto"
    renormalise: bool = False  # the average of several fields is brought back onto the topology
    exchange: Exchange = "auto"  # how one side reaches all devices; auto: by its size
    block: AtLeast1 | None = None  # rows and columns scored at a time; None: by the size of a score

    def fields(self, config: "Config", side: Literal["query", "document"]) -> tuple[str, ...]:
        """The names of the fields of a side that it compares."""
        return getattr(self, side) or config.side(side)

    def compares(self, config: "Config") -> tuple[str, ...]:
        return (*self.fields(config, "query"), *self.fields(config, "document"))

    def other_topology(self, config: "Config") -> str:
        of_fields = config.topology_of(*self.compares(config))
        same = ("", getattr(of_fields, "type", of_fields))  # with the keys of the config's
        return self.topology if self.topology not in same else ""

    def lexical(self, config: "Config") -> bool:
        """Whether all of its fields have lexical heads."""
        from big_retrieval.config.run import is_lexical

        return is_lexical(config, *self.compares(config))

    def check(self, config: "Config", path: str) -> Iterator[str]:
        for side in ("query", "document"):
            own = config.side(side)
            for name in getattr(self, side):
                if name not in own:
                    yield (
                        f"{path}.{side} names {name!r}, which is no field of the side {side!r} "
                        f"(there: {', '.join(own) or 'none'})."
                    )
        if self.topology:
            yield from check_topology(self.topology, config, f"{path}.topology")
        yield from _logit_scale(self.logit_scale, f"{path}.logit_scale")


def _logit_scale(t: LogitScale, path: str) -> Iterator[str]:
    if t.max is not None and t.init > t.max * (1 + 1e-6):
        yield (
            f"{path}.init {t.init:g} lies above {path}.max {t.max:g}: the first step would change "
            "it; lower the start or raise the bound."
        )
    if t.min is not None and t.init < t.min * (1 - 1e-6):
        yield f"{path}.init {t.init:g} lies below {path}.min {t.min:g}."


Terms = Literal["all", "average", "pairs"]


@dataclass(frozen=True)
class Sparsity:
    """Factors of the FLOPS regulariser of lexical representations (SPLADE), for each side."""

    query: NotNegative = 0.0
    document: NotNegative = 0.0
    warmup_steps: AtLeast0 = 0  # over which they grow, with the square of the steps


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

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        for side in ("query", "document"):
            value, key = getattr(self.sparsity, side), f"{path}.sparsity.{side}"
            if value and not self.lexical(config):
                yield f"{key} is {value}, but there are no lexical heads; set it to 0."

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.pair_losses import ContrastiveLoss

        return ContrastiveLoss.make(self, config)


@register("loss")
@dataclass(frozen=True)
class Sigmoid(PairLoss):
    """Sigmoid loss of all pairs of the global batch (SigLIP); weighted, GCL's Eq. 6."""

    type: Literal["sigmoid"] = "sigmoid"
    bias: float = -10.0  # start of the learned `scalars/<loss>/bias`; minus the b of GCL's Eq. 6
    weight_inside: bool = False  # a weight multiplies the logit of its pair (Eq. 6), not the loss
    terms: Terms = "all"

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.pair_losses import SigmoidLoss

        return SigmoidLoss.make(self, config)


@register("loss")
@dataclass(frozen=True)
class Triplet(PairLoss):
    """Hinges [margin + s(negative) - s(pair)]+ of every row in both directions (VSE++).

    The scores are compared as they are; `logit_scale` is not read.
    """

    type: Literal["triplet"] = "triplet"
    margin: NotNegative = 0.2  # by which a pair shall score above its negatives
    negatives: Literal["hardest", "all"] = "hardest"  # of the global batch; of all, hinges add up
    reduction: Literal["sum", "mean"] = "sum"  # over the rows; LTD and VSE++ sum

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if self.false_negatives == "positives":
            yield (
                f"{path}.false_negatives is 'positives', but a triplet has one positive; set it to "
                "'mask', which leaves false negatives out."
            )

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.triplet import TripletLoss

        return TripletLoss.make(self, config)
