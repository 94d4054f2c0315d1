"""The optimizer of a run, which `groups.py` puts together: from gradients to new parameters.

Names are the paths of the parameter tree joined by slashes, e.g. `image/layers_3/mlp/fc1/kernel`.

Parameters with one update rule that are trained in the same phases share a state, a *partition*.
States have the same structure in all phases, so that a checkpoint fits each phase. Parameters that
no phase trains have no state. A phase that freezes a partition does not change its state, including
its count of steps. Adam's bias correction therefore starts with a parameter's first training step.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from big_retrieval.train.schedules import Rate, Span, Timeline


def names_of(params: Any) -> dict[str, Any]:
    """Returns the parameters by name, in the order of the tree."""
    return traverse_util.flatten_dict(params, sep="/")


def tree_of(flat: Mapping[str, Any]) -> Any:
    """Returns the tree of parameters by name: the inverse of `names_of`."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def replaced(params: Any, new: Mapping[str, Any]) -> Any:
    """Returns the parameters with some replaced by name; the others are the same arrays."""
    flat = traverse_util.flatten_dict(params, sep="/", keep_empty_nodes=True)
    return tree_of({name: new.get(name, x) for name, x in flat.items()})


@dataclasses.dataclass(frozen=True)
class UpdateRuleContext:
    """The parameters of an update rule.

    Attributes:
      path: path of the rule in the config, for messages.
      weight_decay: tree of floats like the parameters: share of a parameter to add to its update.
      output_axis: tree of ints like the parameters: axis of the layer's output, or of table rows.
    """

    path: str
    weight_decay: Any
    output_axis: Any


@dataclasses.dataclass(frozen=True)
class Partition:
    """Parameters that share an optimizer state."""

    names: tuple[str, ...]
    phases: frozenset[int]  # indices of the phases that train the parameters
    tx: optax.GradientTransformation  # rule and weight decay, without the learning rate


@dataclasses.dataclass(frozen=True)
class Updates:
    """The optimizer of a run.

    Attributes:
      spans: phases in order.
      partitions: by name of their states.
      owner: name of a parameter -> its group; "" for none.
      rates: per phase, the learning rates of "" and of every group with its own rate.
      clipped: names of the parameters that are clipped.
      clip_norm: maximum norm of their gradients; None for no clipping.
    """

    timeline: Timeline
    spans: tuple[Span, ...]
    partitions: Mapping[str, Partition]
    owner: Mapping[str, str]
    rates: tuple[Mapping[str, Rate], ...]
    clipped: frozenset[str]
    clip_norm: float | None

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the state: an optax state for each partition."""
        flat = names_of(params)
        return {
            key: partition.tx.init(tree_of({name: flat[name] for name in partition.names}))
            for key, partition in self.partitions.items()
        }

    def trained(self, phase: int) -> frozenset[str]:
        """Returns the names of the parameters that a phase trains."""
        parts = [p.names for p in self.partitions.values() if phase in p.phases]
        return frozenset().union(*parts)

    def update(
        self, phase: int, grads: Any, state: Mapping[str, Any], params: Any, step: jax.Array
    ) -> tuple[Any, dict[str, Any], dict[str, jax.Array]]:
        """Returns (params, state, metrics) after one step of a phase.

        Frozen parameters stay the same arrays; their gradients are not used.

        Args:
          step: int32 [], finished steps.
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
        for key, partition in self.partitions.items():
            if phase not in partition.phases:
                continue
            clean, old = ({n: tree[n] for n in partition.names} for tree in (flat, weights))
            updates, states[key] = partition.tx.update(tree_of(clean), state[key], tree_of(old))
            for name, update in names_of(updates).items():
                rate = rates.get(self.owner[name], rates[""])
                # Rounded as optax's scale_by_schedule and apply_updates round.
                moved = old[name] + jnp.array(-1 * rate, update.dtype) * update
                new[name] = jnp.asarray(moved).astype(old[name].dtype)
        return replaced(params, new), states, metrics

    def _rates(self, phase: int, step: jax.Array) -> dict[str, jax.Array]:
        """Returns group -> rate; 0 for groups that the phase does not train."""
        moving = {self.owner[name] for name in self.trained(phase)} | {""}
        return {
            group: jnp.asarray(rate(step) if group in moving else 0.0)
            for group, rate in self.rates[phase].items()
        }
