"""Update rules, the parts of the kind "optimizer": their keys and what they build.

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

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import NotNegative, Positive, ShareBelow1
from big_retrieval.config.registry import Part, Plugin, register, required
from big_retrieval.errors import UserError

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

    @required
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
class AdamW(UpdateRule):
    """Adam with decoupled weight decay: "Decoupled Weight Decay Regularization"."""

    type: Literal["adamw"] = "adamw"
    b1: ShareBelow1 = 0.9
    b2: ShareBelow1 = 0.98
    eps: Positive = 1e-6

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        import optax

        return optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps)


@register("optimizer")
@dataclass(frozen=True)
class AdamP(UpdateRule):
    """Adam whose updates of scale-invariant weights lose their radial part.

    "AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant Weights".
    """

    applies_decay: ClassVar[bool] = True
    type: Literal["adamp"] = "adamp"
    b1: ShareBelow1 = 0.9
    b2: ShareBelow1 = 0.999
    eps: Positive = 1e-8
    # below this cosine, times sqrt(size), weights count as scale-invariant
    delta: NotNegative = 0.1
    decay_ratio: NotNegative = 0.1  # what is left of the weight decay of these
    nesterov: bool = False

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        from big_retrieval.train.adamp import scale_by_adamp

        keys = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "type"}
        return scale_by_adamp(context.output_axis, context.weight_decay, **keys)


@register("optimizer")
@dataclass(frozen=True)
class Sgd(UpdateRule):
    """Gradient descent with momentum; the first step is as long as all others of its direction."""

    type: Literal["sgd"] = "sgd"
    momentum: ShareBelow1 = 0.9  # 0: none, and no state
    nesterov: bool = False

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        import optax

        return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@register("optimizer")
@dataclass(frozen=True)
class Optax(UpdateRule):
    """Any optimizer of optax or optax.contrib by its name, or one of its `scale_by_...`.

    Its own weight decay is 0 unless `arguments` say otherwise.
    """

    type: Literal["optax"] = "optax"
    name: str = "adam"
    arguments: dict[str, bool | int | float | str] = field(default_factory=dict)

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        from big_retrieval.train.optax_names import by_name

        return by_name(self.name, self.arguments, context.path)


@register("optimizer")
@dataclass(frozen=True)
class Same(UpdateRule):
    """Of a group: the run's rule."""

    type: Literal["same"] = "same"

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        """Never called: the run's rule is built instead."""
        raise NotImplementedError


@dataclass(frozen=True)
class ForeignRule(UpdateRule):
    """A rule of a saved run whose file is not imported: kept as it is, and never built.

    Attributes:
      saved_form: its keys.
      plugin: where it was defined.
    """

    saved_form: Mapping[str, Any] = field(default_factory=dict)
    plugin: Plugin = field(default_factory=Plugin)

    def build(self, context: "UpdateRuleContext") -> "optax.GradientTransformation":
        """Raises a UserError that names the file."""
        raise UserError(
            f"{context.path} is of the type {self.saved_form.get('type')!r}, which "
            f"{self.plugin.where} defines: give this file as --plugins=FILE."
        )
