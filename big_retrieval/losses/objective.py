"""The training loss: the losses of a config, weighted or as constraints, as one number.

A new loss is a part of its own (`big_retrieval.config.Loss`) in a file of its own; nothing here
knows which losses there are.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Constraint, Field
from big_retrieval.errors import UserError
from big_retrieval.losses import constraint
from big_retrieval.losses.constraint import Multiplier
from big_retrieval.losses.function import Context, LossFunction, Result

NOTHING: Mapping[str, jax.Array] = {}


@dataclass(frozen=True)
class Objective:
    """Weighted losses and constraints as one number: sum weight * L + sum lambda * (L / bound - 1).

    Attributes:
      losses: by name.
      weights: of the losses that are no constraints.
      constraints: settings of the losses that are constraints.
      fields: all fields of a batch, targets included, which the losses' modules read.
    """

    losses: Mapping[str, LossFunction]
    weights: Mapping[str, float]
    constraints: Mapping[str, Constraint]
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    def scalars(self) -> dict[str, dict[str, float]]:
        """Loss -> its learned scalars and their initial values; losses without any are left out."""
        found = {name: loss.scalars() for name, loss in self.losses.items()}
        return {name: scalars for name, scalars in found.items() if scalars}

    def bound(self, scalars: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """The scalars put back into their bounds, after the optimizer's update."""
        return {name: self.losses[name].bound(own) for name, own in scalars.items()}

    def modules(self) -> dict[str, nn.Module]:
        """Loss -> its module, of the losses that own one."""
        found = {name: loss.module() for name, loss in self.losses.items()}
        return {name: module for name, module in found.items() if module is not None}

    def multipliers(self) -> dict[str, Multiplier]:
        """Loss -> the state of its multiplier before the first step, of constraints."""
        return {name: constraint.start(config) for name, config in self.constraints.items()}

    def __call__(
        self,
        reps: Reps,
        batch: Batch,
        scalars: Mapping[str, Any],
        step: jax.Array | int = 0,
        multipliers: Mapping[str, Multiplier] | None = None,
        logged: jax.Array | bool = True,
    ) -> Result:
        """The total [] and metrics [] of a global batch; pure.

        Args:
          reps: embeddings of all fields, and the outputs of the losses' modules.
          batch: ids, weights and masks of its rows.
          scalars: the learned ones, by loss.
          step: number of finished steps.
          multipliers: of the constraints; None: there are none.
          logged: see `Context`.

        Returns:
          With several losses `<loss>/loss` is L of each, and metrics are named
          `<loss>/<metric>`; metrics of a single loss have no prefix.
        """
        parts, metrics = [], {}
        for name, loss in self.losses.items():
            value, found = loss(Context(reps, batch, scalars.get(name, NOTHING), step, logged))
            if name in self.constraints:
                assert multipliers is not None
                part = constraint.penalty(self.constraints[name], multipliers[name], value)
            else:  # times 1 would be exact, too, but another program
                part = value if self.weights[name] == 1 else self.weights[name] * value
            parts.append(part)
            own = {f"{self._prefix(name)}{key}": x for key, x in found.items()}
            whole = {f"{name}/loss": value} if self._prefix(name) else {}
            metrics = join_metrics(metrics, own, whole)
        return functools.reduce(jnp.add, parts), metrics

    def ascend(
        self, multipliers: Mapping[str, Multiplier], metrics: Mapping[str, jax.Array]
    ) -> tuple[dict[str, Multiplier], dict[str, jax.Array]]:
        """The multipliers after a step, and their metrics `<loss>/<metric>`.

        Args:
          multipliers: as the step read them.
          metrics: of the step.
        """
        states, found = {}, {}
        for name, config in self.constraints.items():
            states[name] = constraint.ascend(config, multipliers[name], metrics[f"{name}/loss"])
            logged = constraint.metrics(config, states[name])
            found |= {f"{name}/{key}": value for key, value in logged.items()}
        return states, found

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Warnings for the user that follow from the metrics of a step."""
        for name, loss in self.losses.items():
            prefix = self._prefix(name)
            own = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
            yield from loss.warnings(own)
            if name in self.constraints:
                yield from constraint.warnings(self.constraints[name], name, own)

    def _prefix(self, name: str) -> str:
        """Prefix of the names of a loss's metrics; empty where it is the only loss."""
        return f"{name}/" if len(self.losses) > 1 or name in self.constraints else ""


def join_metrics(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of several sources together.

    Raises:
      UserError: two of them have a metric of one name.
    """
    out: dict[str, Any] = {}
    for group in groups:
        if twice := sorted(out.keys() & group.keys()):
            raise UserError(
                f"A loss returns the metric {twice[0]!r}, but another metric has this name. Rename "
                "the loss's metric."
            )
        out |= group
    return out


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """The config that losses are built with: it says how many ids the tokenizer has."""
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=vocab_size)
    return dataclasses.replace(config, tokenizer=tokenizer)


def make_objective(config: Config, vocab_size: int | None = None) -> Objective:
    """The training loss of a checked config.

    Args:
      config: checked.
      vocab_size: of the tokenizer; None: that of the config.
    """
    if vocab_size is not None:
        config = with_vocabulary(config, vocab_size)
    bounded = {name: loss.constraint for name, loss in config.losses.items()}
    return Objective(
        {name: loss.build(config, name) for name, loss in config.losses.items()},
        {name: loss.weight for name, loss in config.losses.items()},
        {name: found for name, found in bounded.items() if found.bound is not None},
        config.fields,
    )
