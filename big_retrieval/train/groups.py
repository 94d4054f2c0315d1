"""Groups of parameters: their members, and rule, rate and decay of a member in a phase."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from big_retrieval.config import GroupRate, Optimizer, ParameterGroup, Schedule, UpdateRule
from big_retrieval.config.optimizer import SAME
from big_retrieval.errors import UserError
from big_retrieval.train.schedules import Rate, Span, Timeline, make_schedule

PATH = "config.optimizer"
# Tables of learned vectors, which decay would pull to 0: by their first logical axis, or by name in
# towers without logical axes.
NEVER_DECAYED_AXES = ("class_token", "position", "relative")
NEVER_DECAYED = r".*(class|end|position)_embedding"


def assign(config: Optimizer, names: Sequence[str]) -> dict[str, str]:
    """Returns the group of every parameter, "" for none.

    Raises:
      UserError: a group without parameters, or two groups of one order that share a parameter.
    """
    owner: dict[str, str] = {}
    for key, group in config.ordered_groups():
        path = f"{PATH}.groups.{key}"
        hits = matching(group.pattern, names, f"{path}.pattern")
        for name in hits:
            other = owner.setdefault(name, key)
            if other != key and config.groups[other].order == group.order:
                raise UserError(
                    f"{path}.pattern and {PATH}.groups.{other}.pattern both match {name!r}: give "
                    "the group that is to have it the lower order."
                )
        if key not in owner.values():
            raise UserError(
                f"{path}.pattern: groups of a lower order have all parameters that "
                f"{group.pattern!r} matches, such as {hits[0]!r}; remove the group, or lower its "
                "order."
            )
    return {name: owner.get(name, "") for name in names}


def matching(pattern: str, names: Sequence[str], key: str) -> list[str]:
    """Returns the names that a pattern matches in full.

    Raises:
      UserError: no name matches.
    """
    hits = [name for name in names if re.fullmatch(pattern, name)]
    if not hits:
        raise UserError(
            f"{key}: {pattern!r} matches no parameter; a pattern must match a whole name such as "
            f"{names[0]!r} or {names[-1]!r}."
        )
    return hits


def trained_by(
    span: Span, owner: Mapping[str, str], groups: Mapping[str, ParameterGroup]
) -> frozenset[str]:
    """Returns the parameters that a phase trains.

    Args:
      owner: name of a parameter -> its group.
      groups: by name; "" for parameters without a group.

    Raises:
      UserError: a pattern of the phase has no match, or nothing is left to train.
    """
    names, path = list(owner), f"{PATH}.phases.{span.name}"
    found = set(matching(span.phase.trainable, names, f"{path}.trainable"))
    if span.phase.frozen:
        found -= set(matching(span.phase.frozen, names, f"{path}.frozen"))
    trained = frozenset(name for name in found if not groups[owner[name]].frozen)
    if not trained and span.name:
        raise UserError(f"{path} trains no parameter: widen its trainable, or narrow its frozen.")
    if not trained:
        raise UserError(f"{PATH}.groups freeze all parameters: leave some of them to be trained.")
    return trained


def rule_of(config: Optimizer, group: str) -> tuple[str, UpdateRule]:
    """Returns the path and the update rule of a group."""
    if not group or config.groups[group].rule.type == SAME:
        return f"{PATH}.rule", config.rule
    return f"{PATH}.groups.{group}.rule", config.groups[group].rule


def has_own_rate(config: Optimizer, name: str) -> bool:
    """Returns True if a group's learning rate differs from the run's in a phase."""
    group = config.groups[name]
    plain = (group.lr, group.lr_factor, group.schedule.type) == (None, 1.0, SAME)
    return not group.frozen and (not plain or any(name in p.groups for p in config.phases.values()))


def rate_of(
    config: Optimizer, name: str, group: ParameterGroup, span: Span, timeline: Timeline
) -> Rate:
    """Returns the learning rate of a group in a phase, by finished steps of the run.

    The phase's keys for the group win over the group's keys, these over the phase's and the run's.
    """
    phase, here = span.phase, span.phase.groups.get(name, GroupRate())
    factor = group.lr_factor if here.lr_factor is None else here.lr_factor
    base = next(x for x in (group.lr, phase.lr, config.lr) if x is not None)
    lr = base * factor if here.lr is None else here.lr
    _, schedule, (start, stop) = schedule_of(config, name, group, span, timeline)
    share = make_schedule(schedule, stop, start, timeline)
    return lambda step: jnp.asarray(lr * share(step))


def schedule_of(
    config: Optimizer, name: str, group: ParameterGroup, span: Span, timeline: Timeline
) -> tuple[str, Schedule, tuple[int, int]]:
    """Returns the schedule of a group in a phase: key, settings, first step and last step + 1."""
    here = span.phase.groups.get(name, GroupRate())
    run, own, phase = (0, timeline.total_steps), (span.start, span.stop), f"phases.{span.name}"
    choices: list[tuple[str, Schedule, tuple[int, int]]] = [
        (f"{phase}.groups.{name}.schedule", here.schedule, own),
        (f"groups.{name}.schedule", group.schedule, run),
        (f"{phase}.schedule", span.phase.schedule, own),
        ("schedule", config.schedule, run),
    ]
    key, schedule, steps = next(choice for choice in choices if choice[1].type != SAME)
    return f"{PATH}.{key}", schedule, steps


def decay_of(config: Optimizer, group: ParameterGroup, name: str, x: Any, axis: str) -> float:
    """Returns the weight decay of a parameter x, whose first logical axis is `axis`."""
    rate = config.weight_decay if group.weight_decay is None else group.weight_decay
    spared = x.ndim < 2 or axis in NEVER_DECAYED_AXES or re.fullmatch(NEVER_DECAYED, name)
    return 0.0 if spared and not group.decay_vectors else rate
