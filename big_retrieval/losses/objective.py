"""The training loss: the losses of a config, weighted or as constraints, as one number.

A new loss is a `big_retrieval.config.Loss` in its own file; nothing here knows which losses exist.
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
from big_retrieval.config import Config, Constraint
from big_retrieval.errors import UserError
from big_retrieval.losses import constraint
from big_retrieval.losses.constraint import Multiplier
from big_retrieval.losses.context import Context

NOTHING: Mapping[str, jax.Array] = {}


@dataclass(frozen=True)
class Objective:
    """Weighted losses and constraints as one number: sum weight * L + sum lambda * (L / bound - 1).

    Attributes:
      config: checked config; its `tokenizer.vocab_size` is the size of the tokenizer itself.
    """

    config: Config

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Settings of the losses that are constraints, by name."""
        found = {name: loss.constraint for name, loss in self.config.losses.items()}
        return {name: limits for name, limits in found.items() if limits.bound is not None}

    def scalars(self) -> dict[str, dict[str, float]]:
        """Returns loss -> initial values of its learned scalars, of the losses that have some."""
        found = {name: loss.scalars() for name, loss in self.config.losses.items()}
        return {name: scalars for name, scalars in found.items() if scalars}

    def bound(self, scalars: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """Returns the scalars within their bounds, after the optimizer's update."""
        return {name: self.config.losses[name].bound(own) for name, own in scalars.items()}

    def modules(self) -> dict[str, nn.Module]:
        """Returns loss -> its module, of the losses that have one."""
        found = {name: loss.module(self.config) for name, loss in self.config.losses.items()}
        return {name: module for name, module in found.items() if module is not None}

    def multipliers(self) -> dict[str, Multiplier]:
        """Returns constraint -> the state of its multiplier before the first step."""
        return {name: constraint.start(limits) for name, limits in self.constraints.items()}

    def __call__(
        self,
        reps: Reps,
        batch: Batch,
        scalars: Mapping[str, Any],
        step: jax.Array | int = 0,
        multipliers: Mapping[str, Multiplier] | None = None,
        logged: jax.Array | bool = True,
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
        """Returns the total [], metrics [] and the L of each constraint for a global batch; pure.

        Args:
          reps: embeddings of all fields, and the outputs of the losses' modules.
          scalars: learned scalars by loss.
          step: number of finished steps.
          multipliers: states of the constraints' multipliers; None if there are no constraints.
          logged: see `Context`.

        Returns:
          With several losses `<loss>/loss` is L of each, and metrics are named
          `<loss>/<metric>`; metrics of a single loss have no prefix.
        """
        parts, metrics, limited = [], {}, {}
        for name, loss in self.config.losses.items():
            learned = scalars.get(name, NOTHING)
            context = Context(reps, batch, self.config, name, learned, step, logged)
            value, found = loss(context)
            if loss.constraint.bound is not None:
                assert multipliers is not None
                limited[name] = value
                part = constraint.penalty(loss.constraint, multipliers[name], value)
            else:  # times 1 would be exact, too, but another program
                part = value if loss.weight == 1 else loss.weight * value
            parts.append(part)
            own = {f"{self._prefix(name)}{key}": x for key, x in found.items()}
            whole = {f"{name}/loss": value} if self._prefix(name) else {}
            metrics = join_metrics(metrics, own, whole)
        return functools.reduce(jnp.add, parts), (metrics, limited)

    def ascend(
        self, multipliers: Mapping[str, Multiplier], values: Mapping[str, jax.Array]
    ) -> tuple[dict[str, Multiplier], dict[str, jax.Array]]:
        """Returns the multipliers after a step with these L of the constraints, and metrics."""
        states, found = {}, {}
        for name, config in self.constraints.items():
            states[name] = constraint.ascend(config, multipliers[name], values[name])
            logged = constraint.metrics(config, states[name])
            found |= {f"{name}/{key}": value for key, value in logged.items()}
        return states, found

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields warnings for the user that follow from the metrics of a step."""
        for name, loss in self.config.losses.items():
            prefix = self._prefix(name)
            own = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
            yield from loss.warnings(own)
            if loss.constraint.bound is not None:
                yield from constraint.warnings(loss.constraint, name, own)

    def _prefix(self, name: str) -> str:
        """Prefix of the names of a loss's metrics; empty where it is the only loss."""
        return f"{name}/" if len(self.config.losses) > 1 or name in self.constraints else ""


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
    """Returns the config with the tokenizer's number of ids."""
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=vocab_size)
    return dataclasses.replace(config, tokenizer=tokenizer)


def make_objective(config: Config, vocab_size: int | None = None) -> Objective:
    """Returns the training loss of a checked config.

    Args:
      vocab_size: number of ids of the tokenizer; None for `config.tokenizer.vocab_size`.
    """
    return Objective(config if vocab_size is None else with_vocabulary(config, vocab_size))
