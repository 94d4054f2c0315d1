"""The update rules of the package: config keys and their optax transformations."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import optax
import optax.contrib

from big_retrieval.config.ranges import NotNegative, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.update_rules import UpdateRule
from big_retrieval.errors import UserError
from big_retrieval.train.adamp import scale_by_adamp
from big_retrieval.train.optimizer import UpdateRuleContext

# Not update rules: their steps are not proportional to the learning rate, they need more than a
# gradient (such as the loss), or they do not accept parameters of every shape.
UNFIT = (
    "fromage", "cocob", "scale_by_cocob", "madgrad", "scale_by_madgrad", "lbfgs",
    "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch", "schedule_free",
    "schedule_free_sgd", "schedule_free_adamw", "polyak_sgd", "scale_by_polyak", "momo",
    "momo_adam", "dpsgd", "sophia", "scale_by_muon", "sm3", "scale_by_sm3",
    "scale_by_learning_rate", "scale_by_schedule",
)  # fmt: skip


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
    # weights count as scale-invariant if |cosine| to their gradient is below delta / sqrt(size)
    delta: NotNegative = 0.1
    decay_ratio: NotNegative = 0.1  # factor of the weight decay of scale-invariant weights
    nesterov: bool = False

    def build(self, context: UpdateRuleContext) -> optax.GradientTransformation:
        keys = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "type"}
        return scale_by_adamp(context.output_axis, context.weight_decay, **keys)


@register("optimizer")
@dataclass(frozen=True)
class Sgd(UpdateRule):
    """Gradient descent with momentum: m_t = momentum * m_{t-1} + gradient, without dampening."""

    type: Literal["sgd"] = "sgd"
    momentum: ShareBelow1 = 0.9  # momentum; 0 disables it and its state
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


@functools.cache
def update_rules() -> dict[str, Callable[..., Any]]:
    """Returns name -> function that creates an update rule; optax takes precedence."""
    return {
        name: make
        for name, make in (vars(optax.contrib) | vars(optax)).items()
        if inspect.isfunction(make) and name not in UNFIT
        if name.startswith("scale_by_") or "learning_rate" in inspect.signature(make).parameters
    }


def by_name(name: str, arguments: Mapping[str, Any], path: str) -> optax.GradientTransformation:
    """Returns an update rule by its name in optax, such as "lion" or "scale_by_rms".

    Args:
      arguments: arguments of the function, except its learning rate.

    Raises:
      UserError: an unknown or unsuitable optimizer, or wrong arguments.
    """
    make = update_rules().get(name)
    if make is None:
        near = difflib.get_close_matches(name, update_rules(), 1)
        reason = "it cannot be an update rule" if name in UNFIT else "optax has no such optimizer"
        hint = f" (did you mean {near[0]!r}?)" if near and name not in UNFIT else ""
        raise UserError(f"{path}.name {name!r}: {reason}{hint}. Choose another optimizer.")
    if "learning_rate" in arguments:
        raise UserError(f"{path}.arguments.learning_rate: set config.optimizer.lr instead.")
    accepted, keys = inspect.signature(make).parameters, dict(arguments)
    if "weight_decay" in accepted:
        keys.setdefault("weight_decay", 0.0)  # config.optimizer.weight_decay applies instead
    if "learning_rate" in accepted:
        keys["learning_rate"] = 1.0
    try:
        rule = make(**keys)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}.arguments: optax.{name}: {error}.") from None
    return optax.chain(rule, optax.scale(-1.0)) if "learning_rate" in accepted else rule
