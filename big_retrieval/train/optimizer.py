"""AdamW from small optax parts, with rules over parameter names.

Names are the paths of the parameter tree joined by slashes, e.g. `image/layers_3/mlp/fc1/kernel`.
A rule is a regular expression that must match a whole name; the last one that matches holds, and
one that matches no parameter is an error, because it is nearly always a misspelling.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from big_retrieval.config import Optimizer, Schedule
from big_retrieval.errors import UserError

Default = Callable[[str, Any], float]
# Tables of which every row is one learned vector: decaying them pulls tokens to the origin.
NEVER_DECAYED = r".*(class_embedding|position_embedding)"


def names_of(params: Any) -> dict[str, Any]:
    """The parameters by name, in the order of the tree."""
    return traverse_util.flatten_dict(params, sep="/")


def make_schedule(config: Schedule, total_steps: int) -> optax.Schedule:
    """The learning-rate factor by step, between 0 and 1.

    The warm-up rises linearly from 0 to 1; the body runs from the end of the warm-up to the end of
    the run; the cool-down takes what the body would give at its start linearly to `end`. Both are
    clipped to the length of the run.

    Args:
      config: kind and lengths.
      total_steps: the length of the run.
    """
    warmup = min(config.warmup_steps, total_steps)
    cooldown = min(config.cooldown_steps, total_steps - warmup)
    length = max(1, total_steps - warmup)

    def body(step: jax.Array) -> jax.Array:
        progress = jnp.clip((step - warmup) / length, 0.0, 1.0)
        if config.type == "cosine":
            # (1 + cos(pi p)) / 2, without its loss of digits near the end
            return config.end + (1 - config.end) * jnp.sin(0.5 * jnp.pi * (1 - progress)) ** 2
        if config.type == "linear":
            return config.end + (1 - config.end) * (1 - progress)
        if config.type == "rsqrt":
            return jnp.sqrt(config.timescale / (config.timescale + jnp.maximum(0, step - warmup)))
        return jnp.ones_like(progress)

    def schedule(count: Any) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        start = total_steps - cooldown
        value = body(jnp.minimum(step, start) if cooldown else step)
        if cooldown:
            share = jnp.clip((step - start) / cooldown, 0.0, 1.0)
            value = value * (1 - share) + config.end * share
        value = jnp.maximum(value, config.floor)
        return value * jnp.minimum(1.0, step / warmup) if warmup else value

    return schedule


def factors(
    params: Any,
    rules: Sequence[tuple[str, float]],
    key: str,
    default: Default = lambda name, x: 1.0,
) -> dict[str, float]:
    """The factor of every parameter under rules.

    Args:
      params: the parameter tree; only names and ranks are read.
      rules: (regular expression, factor); the last whole match holds.
      key: the configuration's name of the rules, for messages.
      default: the factor of what no rule matches, a function of (name, parameter).

    Raises:
      UserError: a rule that is no regular expression, or that matches no parameter.
    """
    flat = names_of(params)
    out = {name: default(name, x) for name, x in flat.items()}
    for pattern, factor in rules:
        try:
            hits = [name for name in flat if re.fullmatch(pattern, name)]
        except re.error as problem:
            raise UserError(f"{key}: {pattern!r} is not a regular expression: {problem}.") from None
        if not hits:
            raise UserError(
                f"{key}: {pattern!r} matches no parameter; a rule must match a whole name such as "
                f"{next(iter(flat))!r} or {list(flat)[-1]!r}."
            )
        out |= dict.fromkeys(hits, factor)
    return out


def trainable(params: Any, config: Optimizer) -> dict[str, bool]:
    """Which parameters `freeze` leaves trainable, by name."""
    rules = [(pattern, 0.0) for pattern in config.freeze]
    return {n: f > 0 for n, f in factors(params, rules, "config.optimizer.freeze").items()}


def _decays(name: str, x: Any) -> float:
    return float(x.ndim >= 2 and not re.fullmatch(NEVER_DECAYED, name))


def _tree(flat: Mapping[str, Any]) -> Any:
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def _scaled(flat: Mapping[str, float], add_parameter: bool) -> optax.GradientTransformation:
    """Multiplies updates by a factor per parameter, or adds that factor times the parameter."""
    tree = _tree(flat)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(u: Any, f: float, p: Any) -> Any:
            return u + f * p if add_parameter else u * f

        masked = lambda x: isinstance(x, optax.MaskedNode)  # noqa: E731
        pick = jax.tree.map(lambda u, f: u if masked(u) else f, updates, tree, is_leaf=masked)
        return jax.tree.map(one, updates, pick, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # type: ignore


def make_optimizer(
    config: Optimizer, params: Any, total_steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """AdamW with clipping, decoupled weight decay and per-parameter rules.

    Frozen parameters get no update, have no optimiser state and do not count in the clipped norm.

    Args:
      config: hyper-parameters and rules.
      params: the parameters or their abstract form.
      total_steps: the length of the run, for the schedule.

    Returns:
      The transformation, and the learning rate by step (count of finished steps).

    Raises:
      UserError: a rule that matches nothing or is no regular expression.
    """
    shape = make_schedule(config.schedule, total_steps)
    rates = factors(params, config.lr_factors, "config.optimizer.lr_factors")
    key = "config.optimizer.decay_factors"
    decays = factors(params, config.decay_factors, key, default=_decays)
    train = trainable(params, config)

    def learning_rate(count: Any) -> jax.Array:
        return jnp.asarray(config.lr * shape(count))

    parts = []
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay:
        decays = {name: config.weight_decay * factor for name, factor in decays.items()}
        parts.append(_scaled(decays, add_parameter=True))
    if config.lr_factors:
        parts.append(_scaled(rates, add_parameter=False))
    parts.append(optax.scale_by_learning_rate(learning_rate))
    chain = optax.chain(*parts)
    if not all(train.values()):
        labels = _tree({name: "train" if on else "frozen" for name, on in train.items()})
        chain = optax.partition({"train": chain, "frozen": optax.set_to_zero()}, labels)
    return chain, learning_rate
