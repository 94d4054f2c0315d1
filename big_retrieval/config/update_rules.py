"""Base class of update rules, the parts of the kind "optimizer"; rules are in train/rules.py.

A rule turns gradients into updates, which the learning rate then scales. Rate, schedule, clipping
and frozen parameters are not its task. A custom rule:

    @config.register("optimizer")
    @dataclass(frozen=True)
    class Signs(config.UpdateRule):
        type: Literal["signs"] = "signs"

        def build(self, context):
            return optax.scale_by_sign()
"""

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.registry import Part, register

if TYPE_CHECKING:
    import optax

    from big_retrieval.train.optimizer import UpdateRuleContext


class UpdateRule(Part):
    """Base class of update rules; see `Part`."""

    kind: ClassVar[str] = "optimizer"
    # True if the result of `build` adds `context.weight_decay` times the parameter. Otherwise the
    # trainer adds it (decoupled weight decay, as in AdamW).
    applies_decay: ClassVar[bool] = False

    @abc.abstractmethod
    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        """Returns the transformation from gradients to updates, which are scaled and subtracted.

        Its state must not depend on the step of the run, because frozen parameters skip steps.
        """


@register("optimizer")
@dataclass(frozen=True)
class Same(UpdateRule):
    """The run's rule, for a group."""

    type: Literal["same"] = "same"

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        raise NotImplementedError  # the trainer builds the run's rule instead
