"""The base of update rules, the parts of the kind "optimizer"; ours are in train/rules.py.

A rule turns gradients into updates that the learning rate then scales; rate, schedule, clipping,
weight decay and what is frozen are not its business. One of your own, in a config file or a module
that it imports:

    @config.register("optimizer")
    @dataclass(frozen=True)
    class Signs(config.UpdateRule):
        type: Literal["signs"] = "signs"

        def build(self, context):
            return optax.scale_by_sign()
"""

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.registry import Part, register

if TYPE_CHECKING:
    import optax

    from big_retrieval.config.run import Config
    from big_retrieval.train.optimizer import UpdateRuleContext


class UpdateRule(Part):
    """The base of all update rules: frozen dataclasses with the key `type`.

    Attributes:
      applies_decay: whether what `build` returns adds `context.weight_decay` times the parameter
        itself; elsewhere that is done for it (decoupled weight decay, as in AdamW).
    """

    kind: ClassVar[str] = "optimizer"
    applies_decay: ClassVar[bool] = False

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys, a sentence each; free of jax.

        Args:
          config: of the run.
          path: of this rule, such as `config.optimizer.rule`.
        """
        del config, path
        yield from ()

    @abc.abstractmethod
    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        """From gradients to updates that are to be subtracted after scaling by the learning rate.

        Its state may hold nothing that depends on the number of the step in the run: a frozen
        parameter's steps do not count.

        Args:
          context: what is known of the parameters that follow this rule.
        """
        raise NotImplementedError


@register("optimizer")
@dataclass(frozen=True)
class Same(UpdateRule):
    """Of a group: the run's rule."""

    type: Literal["same"] = "same"

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        """Never called: the run's rule is built instead."""
        raise NotImplementedError
