"""Groups of parameters: `make_updates` gives each group its rule, rates and weight decay.

Patterns are regular expressions that must match a full name. A pattern without a match is an error.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from big_retrieval.config import GroupRate, Optimizer, ParameterGroup, Schedule, UpdateRule
from big_retrieval.config.optimizer import SAME
from big_retrieval.errors import UserError
from big_retrieval.train.optimizer import (
    Partition,
    UpdateRuleContext,
    Updates,
    names_of,
    tree_of,
)
from big_retrieval.train.schedules import Rate, Span, Timeline, make_schedule, spans

PATH = "config.optimizer"
# Tables of learned vectors, which decay would pull to 0: by their first logical axis, or by name in
# towers without logical axes.
NEVER_DECAYED_AXES = ("class_token", "position", "relative")
NEVER_DECAYED = r".*(class|end|position)_embedding"
# Logical first axes of weights stored by row; other weights are stored by column.
_TABLES = ("vocab", "position", "class_token")
_REST = ParameterGroup(pattern=".*")  # for parameters without a group


def make_updates(config: Optimizer, params: Any, timeline: Timeline) -> Updates:
    """Returns the optimizer of a run.

    Args:
      params: parameters or their abstract form, optionally boxed with their logical axis names.

    Raises:
      UserError: a pattern without a match, overlapping groups or phases, nothing to train, or an
        error of a rule.
    """
    phase_spans = spans(config.phases, timeline)
    axes, params = _first_axes(params), nn.unbox(params)
    outputs = {name: 0 if axis in _TABLES else -1 for name, axis in axes.items()}
    flat = names_of(params)
    owner = assign(config, list(flat))
    groups = {name: group_of(config, key) for name, key in owner.items()}
    trained = [trained_by(span, groups) for span in phase_spans]
    rated = ["", *sorted(name for name in config.groups if has_own_rate(config, name))]
    rates = tuple(
        {name: rate_of(config, name, span, timeline) for name in rated} for span in phase_spans
    )
    by_rule: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in flat:
        phases = tuple(i for i, names in enumerate(trained) if name in names)
        if phases:  # groups whose rules have equal text share one state
            by_rule.setdefault((repr(rule_of(config, owner[name])[1]), phases), []).append(name)
    partitions = {}
    for index, ((_, phases), names) in enumerate(by_rule.items()):
        path, rule = rule_of(config, owner[names[0]])
        decay = {n: decay_of(config, groups[n], n, flat[n], axes[n]) for n in names}
        context = UpdateRuleContext(path, tree_of(decay), tree_of({n: outputs[n] for n in names}))
        tx = _with_decay(rule, context)
        partitions[f"{rule.type}_{index}"] = Partition(tuple(names), frozenset(phases), tx)
    clipped = frozenset(name for name in flat if groups[name].clip)
    return Updates(timeline, phase_spans, partitions, owner, rates, clipped, config.clip_norm)


def group_of(config: Optimizer, name: str) -> ParameterGroup:
    """Returns a group by name; "" for the parameters without a group."""
    return config.groups[name] if name else _REST


def assign(config: Optimizer, names: Sequence[str]) -> dict[str, str]:
    """Returns the group of every parameter, "" for none.

    Raises:
      UserError: a group without parameters, or two groups of equal order that share a parameter.
    """
    owner: dict[str, str] = {}
    for key, group in config.ordered_groups():
        path = f"{PATH}.groups.{key}"
        hits = matching(group.pattern, names, f"{path}.pattern")
        for name in hits:
            other = owner.setdefault(name, key)
            if other != key and config.groups[other].order == group.order:
                raise UserError(
                    f"{path}.pattern and {PATH}.groups.{other}.pattern both match {name!r}. Give "
                    "one of the groups a lower order."
                )
        if key not in owner.values():
            raise UserError(
                f"{path}.pattern: groups of a lower order own all parameters that "
                f"{group.pattern!r} matches, such as {hits[0]!r}. Remove the group, or lower its "
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
            f"{key}: {pattern!r} matches no parameter. It must match a full name, such as "
            f"{names[0]!r} or {names[-1]!r}."
        )
    return hits


def trained_by(span: Span, groups: Mapping[str, ParameterGroup]) -> frozenset[str]:
    """Returns the parameters that a phase trains; `groups` maps parameters to groups.

    Raises:
      UserError: a pattern of the phase has no match, or no parameter is trained.
    """
    names, path = list(groups), f"{PATH}.phases.{span.name}"
    hits = set(matching(span.phase.trainable, names, f"{path}.trainable"))
    if span.phase.frozen:
        hits -= set(matching(span.phase.frozen, names, f"{path}.frozen"))
    trained = frozenset(name for name in hits if not groups[name].frozen)
    if not trained and span.name:
        raise UserError(f"{path} trains no parameter. Change its trainable or frozen.")
    if not trained:
        raise UserError(f"{PATH}.groups freeze all parameters. Train some of them.")
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


def rate_of(config: Optimizer, name: str, span: Span, timeline: Timeline) -> Rate:
    """Returns the learning rate of a group in a phase, by finished steps of the run.

    Keys in order of precedence: the phase's keys for the group, the group's, the phase's, the
    run's.
    """
    group, phase = group_of(config, name), span.phase
    in_phase = phase.groups.get(name, GroupRate())
    factor = group.lr_factor if in_phase.lr_factor is None else in_phase.lr_factor
    base = next(x for x in (group.lr, phase.lr, config.lr) if x is not None)
    lr = base * factor if in_phase.lr is None else in_phase.lr
    _, schedule, (start, stop) = schedule_of(config, name, span, timeline)
    share = make_schedule(schedule, stop, start, timeline)
    return lambda step: jnp.asarray(lr * share(step))


def schedule_of(
    config: Optimizer, name: str, span: Span, timeline: Timeline
) -> tuple[str, Schedule, tuple[int, int]]:
    """Returns the schedule of a group in a phase: key, settings, first step and last step + 1."""
    in_phase = span.phase.groups.get(name, GroupRate())
    of_run, of_phase = (0, timeline.total_steps), (span.start, span.stop)
    phase = f"phases.{span.name}"
    choices: list[tuple[str, Schedule, tuple[int, int]]] = [
        (f"{phase}.groups.{name}.schedule", in_phase.schedule, of_phase),
        (f"groups.{name}.schedule", group_of(config, name).schedule, of_run),
        (f"{phase}.schedule", span.phase.schedule, of_phase),
        ("schedule", config.schedule, of_run),
    ]
    key, schedule, steps = next(choice for choice in choices if choice[1].type != SAME)
    return f"{PATH}.{key}", schedule, steps


def decay_of(config: Optimizer, group: ParameterGroup, name: str, x: Any, axis: str) -> float:
    """Returns the weight decay of a parameter x, whose first logical axis is `axis`."""
    rate = config.weight_decay if group.weight_decay is None else group.weight_decay
    spared = x.ndim < 2 or axis in NEVER_DECAYED_AXES or re.fullmatch(NEVER_DECAYED, name)
    return 0.0 if spared and not group.decay_vectors else rate


def _with_decay(rule: UpdateRule, context: UpdateRuleContext) -> optax.GradientTransformation:
    """Returns a rule, followed by weight decay unless the rule applies it."""
    tx, decays = rule.build(context), context.weight_decay
    if rule.applies_decay or not any(jax.tree.leaves(decays)):
        return tx

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # Also with a decay of 0: without + 0 p, XLA would round later operations differently.
        return jax.tree.map(lambda u, p, decay: u + decay * p, updates, params, decays), state

    decay = optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # type: ignore
    return optax.chain(tx, decay)


def _first_axes(params: Any) -> dict[str, str]:
    """Returns name -> first logical axis; "" if the parameter has none."""

    def axis(x: Any) -> str:
        names = x.names if isinstance(x, nn.Partitioned | nn.LogicallyPartitioned) else ()
        return (names[0] if names else None) or ""

    return {name: axis(x) for name, x in names_of(params).items()}
