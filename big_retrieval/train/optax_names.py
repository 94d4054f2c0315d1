"""Optimizers of optax by name, as update rules without a learning rate."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax
import optax.contrib

from big_retrieval.errors import UserError

# Optimizers that cannot be an update rule.
UNFIT = {
    "its steps are not proportional to the learning rate":
        ("fromage", "cocob", "scale_by_cocob", "madgrad", "scale_by_madgrad"),
    "it needs more than a gradient, such as the loss or other parameters": (
        "lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch", "schedule_free",
        "schedule_free_sgd", "schedule_free_adamw", "polyak_sgd", "scale_by_polyak", "momo",
        "momo_adam", "dpsgd", "sophia",
    ),
    "it does not take parameters of every shape": ("scale_by_muon", "sm3", "scale_by_sm3"),
    "it scales by the learning rate": ("scale_by_learning_rate", "scale_by_schedule"),
}  # fmt: skip


@functools.cache
def known() -> dict[str, Callable[..., Any]]:
    """Returns the functions that can be an update rule by name; optax wins over optax.contrib."""
    functions: dict[str, Callable[..., Any]] = {}
    unfit = {name for names in UNFIT.values() for name in names}
    for module in (optax.contrib, optax):
        for name, make in vars(module).items():
            if not inspect.isfunction(make) or name in unfit:
                continue
            if (
                name.startswith("scale_by_")
                or "learning_rate" in inspect.signature(make).parameters
            ):
                functions[name] = make
    return functions


def by_name(name: str, arguments: Mapping[str, Any], path: str) -> optax.GradientTransformation:
    """Returns an update rule by its name in optax.

    Args:
      name: for example "lion" or "scale_by_rms".
      arguments: arguments of the function, except its learning rate.

    Raises:
      UserError: an unknown or unfit optimizer, or wrong arguments.
    """
    make = known().get(name)
    if make is None:
        for reason, names in UNFIT.items():
            if name in names:
                raise UserError(
                    f"{path}.name {name!r} cannot be an update rule: {reason}; choose another one."
                )
        near = difflib.get_close_matches(name, known(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "see optax's list of optimizers."
        raise UserError(f"{path}.name {name!r} is no optimizer of optax; {hint}")
    if "learning_rate" in arguments:
        raise UserError(f"{path}.arguments.learning_rate: set config.optimizer.lr instead.")
    accepted = inspect.signature(make).parameters
    names = [key for key in accepted if key != "learning_rate"]
    for key in arguments:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
            raise UserError(f"{path}.arguments.{key} is no argument of optax's {name}; {hint}")
    given = dict(arguments)
    if "weight_decay" in accepted:
        given.setdefault("weight_decay", 0.0)  # config.optimizer.weight_decay applies instead
    if "learning_rate" in accepted:
        given["learning_rate"] = 1.0
    try:
        rule = make(**given)
    except (TypeError, ValueError) as problem:
        raise UserError(f"{path}.arguments: optax's {name} says: {problem}.") from None
    return optax.chain(rule, optax.scale(-1.0)) if "learning_rate" in accepted else rule
