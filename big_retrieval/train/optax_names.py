"""Optimizers of optax by name, as update rules without a learning rate."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax
import optax.contrib

from big_retrieval.errors import UserError

# Not update rules: their steps are not proportional to the learning rate, they need more than a
# gradient (such as the loss), or they do not accept parameters of every shape.
UNFIT = (
    "fromage", "cocob", "scale_by_cocob", "madgrad", "scale_by_madgrad", "lbfgs",
    "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch", "schedule_free",
    "schedule_free_sgd", "schedule_free_adamw", "polyak_sgd", "scale_by_polyak", "momo",
    "momo_adam", "dpsgd", "sophia", "scale_by_muon", "sm3", "scale_by_sm3",
    "scale_by_learning_rate", "scale_by_schedule",
)  # fmt: skip


@functools.cache
def update_rules() -> dict[str, Callable[..., Any]]:
    """Returns name -> function that creates an update rule; optax wins over optax.contrib."""
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
