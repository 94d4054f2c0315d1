"""Optimizers of optax by name, as update rules without a learning rate."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax
import optax.contrib

from big_retrieval.errors import UserError

# What cannot be an update rule, and why.
_SEARCHES = "it searches along a line, for which it would have to compute the loss again"
_NONLINEAR = "its steps are not proportional to the learning rate"
_AVERAGES = "it evaluates other parameters than it trains"
_OTHER = "it needs more than a gradient"
_MATRICES = "it takes matrices only; muon chooses them"
_NO_SCALARS = "it takes no parameter without a dimension, such as a learned scalar"
UNFIT = {
    "lbfgs": _SEARCHES, "scale_by_backtracking_linesearch": _SEARCHES,
    "scale_by_zoom_linesearch": _SEARCHES, "fromage": _NONLINEAR, "cocob": _NONLINEAR,
    "scale_by_cocob": _NONLINEAR, "madgrad": _NONLINEAR, "scale_by_madgrad": _NONLINEAR,
    "schedule_free": _AVERAGES, "schedule_free_sgd": _AVERAGES, "schedule_free_adamw": _AVERAGES,
    "polyak_sgd": _OTHER, "scale_by_polyak": _OTHER, "momo": _OTHER, "momo_adam": _OTHER,
    "dpsgd": _OTHER, "sophia": _OTHER, "scale_by_muon": _MATRICES, "sm3": _NO_SCALARS,
    "scale_by_sm3": _NO_SCALARS,
}  # fmt: skip
_NO_RULES = ("scale_by_learning_rate", "scale_by_schedule")


@functools.cache
def known() -> dict[str, Callable[..., Any]]:
    """What can be an update rule, by name: optax's own first."""
    found: dict[str, Callable[..., Any]] = {}
    for module in (optax.contrib, optax):
        for name, make in vars(module).items():
            if not inspect.isfunction(make) or name in (*UNFIT, *_NO_RULES):
                continue
            if name.startswith("scale_by_") or "learning_rate" in _arguments(make):
                found[name] = make
    return found


def by_name(name: str, arguments: Mapping[str, Any], path: str) -> optax.GradientTransformation:
    """The update rule of a name.

    Args:
      name: such as "lion" or "scale_by_rms".
      arguments: of the function of that name, but for its learning rate.
      path: of the rule in the configuration, for messages.

    Raises:
      UserError: no such optimizer, one that cannot be a rule, or wrong arguments.
    """
    make = known().get(name)
    if make is None:
        if name in UNFIT:
            raise UserError(
                f"{path}.name {name!r} cannot be an update rule: {UNFIT[name]}; choose another one."
            )
        near = difflib.get_close_matches(name, known(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "see optax's list of optimizers."
        raise UserError(f"{path}.name {name!r} is no optimizer of optax; {hint}")
    accepted = _arguments(make)
    given = dict(arguments)
    for key in given:
        if key == "learning_rate":
            raise UserError(f"{path}.arguments.learning_rate: set config.optimizer.lr instead.")
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, 1)
            names = ", ".join(x for x in accepted if x != "learning_rate")
            hint = f"did you mean {near[0]!r}?" if near else f"known: {names}."
            raise UserError(f"{path}.arguments.{key} is no argument of optax's {name}; {hint}")
    missing = [key for key, x in accepted.items() if x.default is x.empty]
    missing = [key for key in missing if key not in given and key != "learning_rate"]
    if missing:
        raise UserError(f"{path}.arguments lack {', '.join(missing)}, which optax's {name} needs.")
    if "weight_decay" in accepted:
        given.setdefault("weight_decay", 0.0)  # decay is config.optimizer.weight_decay's business
    try:
        if "learning_rate" not in accepted:
            return make(**given)
        return optax.chain(make(learning_rate=1.0, **given), optax.scale(-1.0))
    except (TypeError, ValueError) as problem:
        raise UserError(f"{path}.arguments: optax's {name} says: {problem}.") from None


def _arguments(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {k: p for k, p in inspect.signature(make).parameters.items() if p.kind in named}
