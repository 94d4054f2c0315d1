"""From gradients to new parameters: groups of parameters, each with its rule, rate and decay.

Names are the paths of the parameter tree joined by slashes, e.g. `image/layers_3/mlp/fc1/kernel`.
Patterns are regular expressions that must match a whole name; one that matches none is an error,
because it is nearly always a misspelling.

Parameters with one update rule that are trained in the same phases share a state, a *partition*.
States have the same structure in all phases, so that a checkpoint fits each; parameters that no
phase trains have none. In a phase that freezes a partition its state stands still, its count of
steps, too: Adam's first step of a parameter is its first step, whenever in the run that is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from big_retrieval.config import Optimizer, ParameterGroup, UpdateRule
from big_retrieval.train.groups import assign, decay_of, has_own_rate, rate_of, rule_of, trained_by
from big_retrieval.train.schedules import Rate, Span, Timeline, spans

# Logical first axes of weights stored by row, all others by column.
_TABLES = ("vocab", "position", "class_token")
_REST = ParameterGroup(pattern=".*")  # of parameters that are in no group


def names_of(params: Any) -> dict[str, Any]:
    """The parameters by name, in the order of the tree."""
    return traverse_util.flatten_dict(params, sep="/")


def tree_of(flat: Mapping[str, Any]) -> Any:
    """The tree of some parameters by name: the inverse of `names_of`."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def replaced(params: Any, new: Mapping[str, Any]) -> Any:
    """The parameters with some of them replaced, by name; all others are the same arrays."""
    flat = traverse_util.flatten_dict(params, sep="/", keep_empty_nodes=True)
    return tree_of({name: new.get(name, x) for name, x in flat.items()})


@dataclasses.dataclass(frozen=True)
class UpdateRuleContext:
    """What an update rule is told about the parameters that follow it.

    Attributes:
      path: of the rule in the configuration, for messages.
      weight_decay: tree of numbers like the parameters: what is to be added of each of them.
      output_axis: tree of ints like the parameters: the axis of a weight that belongs to the
        layer's output (of tables, to their rows).
    """

    path: str
    weight_decay: Any
    output_axis: Any


@dataclasses.dataclass(frozen=True)
class Partition:
    """Parameters that share an optimizer state.

    Attributes:
      names: of the parameters.
      phases: numbers of the phases that train them.
      tx: their rule and weight decay, without the learning rate.
    """

    names: tuple[str, ...]
    phases: frozenset[int]
    tx: optax.GradientTransformation


@dataclasses.dataclass(frozen=True)
class Updates:
    """The optimizer of a run.

    Attributes:
      timeline: of the run.
      spans: its phases in order.
      partitions: by the names that their states have.
      owner: name of a parameter -> its group; "" for none.
      rates: per phase, the learning rate of every group that has one of its own, and of "".
      clipped: names that count for the clip.
      clip_norm: largest norm of their gradients; None: no clipping.
    """

    timeline: Timeline
    spans: tuple[Span, ...]
    partitions: Mapping[str, Partition]
    owner: Mapping[str, str]
    rates: tuple[Mapping[str, Rate], ...]
    clipped: frozenset[str]
    clip_norm: float | None

    def init(self, params: Any) -> dict[str, Any]:
        """The state: one of optax for each partition."""
        flat = names_of(params)
        return {
            key: part.tx.init(tree_of({name: flat[name] for name in part.names}))
            for key, part in self.partitions.items()
        }

    def trained(self, phase: int) -> frozenset[str]:
        """Names of the parameters that a phase moves."""
        parts = [p.names for p in self.partitions.values() if phase in p.phases]
        return frozenset().union(*parts)

    def update(
        self, phase: int, grads: Any, state: Mapping[str, Any], params: Any, step: jax.Array
    ) -> tuple[Any, dict[str, Any], dict[str, jax.Array]]:
        """One step of a phase.

        Args:
          phase: its number.
          grads: of all parameters; those that are frozen in this phase are not looked at.
          state: of `init` or of the step before.
          params: all parameters.
          step: int32 [], finished steps.

        Returns:
          (params, state, metrics): the frozen ones are the same arrays.
        """
        flat, weights, trained = names_of(grads), names_of(params), self.trained(phase)
        norm = optax.tree.norm([g for name, g in flat.items() if name in trained])
        rates = self._rates(phase, step)
        metrics = {"grad_norm": norm}
        metrics |= {f"learning_rate/{k}" if k else "learning_rate": x for k, x in rates.items()}
        clipped = {name: flat[name] for name in flat if name in trained & self.clipped}
        if self.clip_norm is not None and clipped:
            clip = optax.clip_by_global_norm(self.clip_norm)
            flat |= names_of(clip.update(tree_of(clipped), optax.EmptyState())[0])
            if trained - self.clipped:
                metrics["clipped_grad_norm"] = optax.tree.norm(tree_of(clipped))
        new, states = {}, dict(state)
        for key, part in self.partitions.items():
            if phase not in part.phases:
                continue
            mine, old = ({n: each[n] for n in part.names} for each in (flat, weights))
            updates, states[key] = part.tx.update(tree_of(mine), state[key], tree_of(old))
            for name, update in names_of(updates).items():
                rate = rates.get(self.owner[name], rates[""])
                # Rounded as optax's scale_by_schedule and apply_updates round.
                moved = old[name] + jnp.array(-1 * rate, update.dtype) * update
                new[name] = jnp.asarray(moved).astype(old[name].dtype)
        return replaced(params, new), states, metrics

    def _rates(self, phase: int, step: jax.Array) -> dict[str, jax.Array]:
        """Rates by group; 0 for groups that the phase does not train."""
        moving = {self.owner[name] for name in self.trained(phase)} | {""}
        return {
            group: jnp.asarray(rate(step) if group in moving else 0.0)
            for group, rate in self.rates[phase].items()
        }


def make_updates(config: Optimizer, params: Any, timeline: Timeline) -> Updates:
    """The optimizer of a run.

    Args:
      config: checked.
      params: the parameters or their abstract form, perhaps boxed with their logical axis names.
      timeline: of the run.

    Raises:
      UserError: a pattern that matches nothing, groups that overlap, phases that do, nothing to
        train, or what a rule of a group says about its own keys.
    """
    found = spans(config.phases, timeline)
    axes, params = _first_axes(params), nn.unbox(params)
    outputs = {name: 0 if axis in _TABLES else -1 for name, axis in axes.items()}
    flat = names_of(params)
    owner = assign(config, list(flat))
    groups = {"": _REST, **config.groups}
    trained = [trained_by(span, owner, groups) for span in found]
    own = {name for name in config.groups if has_own_rate(config, name)}
    rates = tuple(
        {name: rate_of(config, name, groups[name], span, timeline) for name in sorted(own | {""})}
        for span in found
    )
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in flat:
        phases = tuple(i for i, names in enumerate(trained) if name in names)
        if phases:
            # A rule's text stands for it: groups whose rules say the same share one state.
            together.setdefault((repr(rule_of(config, owner[name])[1]), phases), []).append(name)
    partitions = {}
    for number, ((_, phases), names) in enumerate(together.items()):
        path, rule = rule_of(config, owner[names[0]])
        decay = {n: decay_of(config, groups[owner[n]], n, flat[n], axes[n]) for n in names}
        context = UpdateRuleContext(path, tree_of(decay), tree_of({n: outputs[n] for n in names}))
        tx = _with_decay(rule, context)
        partitions[f"{rule.type}_{number}"] = Partition(tuple(names), frozenset(phases), tx)
    clipped = frozenset(name for name in flat if groups[owner[name]].clip)
    return Updates(timeline, found, partitions, owner, rates, clipped, config.clip_norm)


def _with_decay(rule: UpdateRule, context: UpdateRuleContext) -> optax.GradientTransformation:
    """A rule, and weight decay behind it unless it applies that itself."""
    tx, decays = rule.build(context), context.weight_decay
    if rule.applies_decay or not any(jax.tree.leaves(decays)):
        return tx

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # Of spared parameters, too: to leave out + 0 p changes how XLA rounds what follows.
        return jax.tree.map(lambda u, p, decay: u + decay * p, updates, params, decays), state

    decay = optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # type: ignore
    return optax.chain(tx, decay)


def _first_axes(params: Any) -> dict[str, str]:
    """By name: the first logical axis; "" if the parameter has none."""

    def axis(x: Any) -> str:
        names = x.names if isinstance(x, nn.Partitioned | nn.LogicallyPartitioned) else ()
        return (names[0] if names else None) or ""

    return {name: axis(x) for name, x in names_of(params).items()}
