"""The update rules of the package: config keys and their optax transformations."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import optax

from big_retrieval.config.ranges import NotNegative, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.update_rules import UpdateRule
from big_retrieval.train.adamp import scale_by_adamp
from big_retrieval.train.optax_names import by_name
from big_retrieval.train.optimizer import UpdateRuleContext


@register("optimizer")
@dataclass(frozen=True)
class AdamW(UpdateRule):
    """Adam with decoupled weight decay: "Decoupled Weight Decay Regularization"."""

    type: Literal["adamw"] = "adamw"
    b1: ShareBelow1 = 0.9
    b2: ShareBelow1 = 0.98
    eps: Positive = 1e-6

    def build(self, context: UpdateRuleContext) -> optax.GradientTransformation:
        return optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps)


@register("optimizer")
@dataclass(frozen=True)
class AdamP(UpdateRule):
    """Adam without the radial part of updates of scale-invariant weights (`train/adamp.py`)."""

    applies_decay: ClassVar[bool] = True
    type: Literal["adamp"] = "adamp"
    b1: ShareBelow1 = 0.9
    b2: ShareBelow1 = 0.999
    eps: Positive = 1e-8
    # below this cosine, times sqrt(size), weights count as scale-invariant
    delta: NotNegative = 0.1
    decay_ratio: NotNegative = 0.1  # factor of the weight decay of scale-invariant weights
    nesterov: bool = False

    def build(self, context: UpdateRuleContext) -> optax.GradientTransformation:
        keys = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "type"}
        return scale_by_adamp(context.output_axis, context.weight_decay, **keys)


@register("optimizer")
@dataclass(frozen=True)
class Sgd(UpdateRule):
    """Gradient descent with momentum; the first step is as long as all others of its direction."""

    type: Literal["sgd"] = "sgd"
    momentum: ShareBelow1 = 0.9  # 0 disables momentum and its state
    nesterov: bool = False

    def build(self, context: UpdateRuleContext) -> optax.GradientTransformation:
        return optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity()


@register("optimizer")
@dataclass(frozen=True)
class Optax(UpdateRule):
    """Any optimizer of optax or optax.contrib by name, or a `scale_by_...` transformation.

    The weight decay of the optax function is 0 by default; set it in `arguments`.
    """

    type: Literal["optax"] = "optax"
    name: str = "adam"
    arguments: dict[str, bool | int | float | str] = field(default_factory=dict)

    def build(self, context: UpdateRuleContext) -> optax.GradientTransformation:
        return by_name(self.name, self.arguments, context.path)
