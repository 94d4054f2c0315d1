"""The training loss: sum of the losses of a config, each with a weight or as a constraint.

A new loss is a `big_retrieval.config.Loss` in its own file; this module does not name any loss.
"""

import dataclasses
import functools
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Constraint, Loss
from big_retrieval.errors import UserError
from big_retrieval.losses import constraint
from big_retrieval.losses.constraint import Multiplier
from big_retrieval.losses.context import Context, Result

NOTHING: Mapping[str, jax.Array] = {}


@dataclass(frozen=True)
class Objective:
    """Sum of losses and constraints: sum weight * L + sum lambda * (L / bound - 1)."""

    config: Config  # checked, with the tokenizer's number of ids as `tokenizer.vocab_size`

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Loss name -> settings, for losses that are constraints."""
        limits = {name: loss.constraint for name, loss in self.config.losses.items()}
        return {name: limit for name, limit in limits.items() if limit.bound is not None}

    def scalars(self) -> dict[str, dict[str, float]]:
        """Returns loss -> initial values of its learned scalars, for losses that have scalars."""
        scalars = {name: loss.scalars() for name, loss in self.config.losses.items()}
        return {name: values for name, values in scalars.items() if values}

    def bound(self, scalars: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """Returns the scalars within their bounds, after the optimizer's update."""
        return {name: self.config.losses[name].bound(values) for name, values in scalars.items()}

    def modules(self) -> dict[str, nn.Module]:
        """Returns loss -> its module, for losses that have a module."""
        modules = {name: loss.module(self.config) for name, loss in self.config.losses.items()}
        return {name: module for name, module in modules.items() if module is not None}

    def multipliers(self) -> dict[str, Multiplier]:
        """Returns constraint -> the state of its multiplier before the first step."""
        return {name: constraint.start(limit) for name, limit in self.constraints.items()}

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

        With several losses, metrics are named `<loss>/<metric>`, and `<loss>/loss` is L. Metrics
        of a single loss have no prefix.

        Args:
          scalars: learned scalars by loss.
          multipliers: states of the constraints' multipliers; None without constraints.
        """
        summands, metrics, limited = [], {}, {}
        for name, loss in self.config.losses.items():
            learned = scalars.get(name, NOTHING)
            context = Context(reps, batch, self.config, name, learned, step, logged)
            value, of_loss = evaluate_loss(loss, context)
            if loss.constraint.bound is not None:
                assert multipliers is not None
                limited[name] = value
                summand = constraint.penalty(loss.constraint, multipliers[name], value)
            else:  # a factor of 1 would change the program, though not the value
                summand = value if loss.weight == 1 else loss.weight * value
            summands.append(summand)
            prefix = self._prefix(name)
            of_loss = {f"{prefix}{key}": x for key, x in of_loss.items()}
            metrics = join_metrics(metrics, of_loss, {f"{name}/loss": value} if prefix else {})
        return functools.reduce(jnp.add, summands), (metrics, limited)

    def ascend(
        self, multipliers: Mapping[str, Multiplier], values: Mapping[str, jax.Array]
    ) -> tuple[dict[str, Multiplier], dict[str, jax.Array]]:
        """Returns the multipliers after a step with these L of the constraints, and metrics."""
        states, metrics = {}, {}
        for name, limit in self.constraints.items():
            states[name] = constraint.ascend(limit, multipliers[name], values[name])
            of_state = constraint.metrics(limit, states[name])
            metrics |= {f"{name}/{key}": value for key, value in of_state.items()}
        return states, metrics

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields warnings for the user about the metrics of a step."""
        for name, loss in self.config.losses.items():
            prefix = self._prefix(name)
            named = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
            yield from loss.warnings(named)
            if loss.constraint.bound is not None:
                yield from constraint.warnings(loss.constraint, name, named)

    def _prefix(self, name: str) -> str:
        """Returns the prefix of a loss's metric names; empty for a single loss."""
        single = len(self.config.losses) == 1 and name not in self.constraints
        return "" if single else f"{name}/"


def evaluate_loss(loss: Loss, context: Context) -> Result:
    """Returns the result of a loss.

    Raises:
      UserError: the loss reads an unknown key, or does not return a scalar and metrics by name.
    """
    path = f"config.losses.{context.name}"
    try:
        result: Any = loss(context)
    except KeyError as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        fields = ", ".join(sorted(context.reps.embeddings))
        raise UserError(
            f"{path}: nothing is called {error} ({Path(line.filename).name}, line {line.lineno}). "
            f"The embeddings are of the fields: {fields}."
        ) from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise UserError(
            f"{path} returned a {type(result).__name__}. Return the loss and its metrics, such as "
            "`return value, {}`."
        )
    if shape := jnp.shape(result[0]):
        raise UserError(
            f"{path} returned a loss of shape {shape}. Return a scalar, such as "
            "`mean(values, context.batch.valid)`."
        )
    return result


def join_metrics(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of all groups.

    Raises:
      UserError: two groups have a metric of the same name.
    """
    out: dict[str, Any] = {}
    for group in groups:
        if names := sorted(out.keys() & group.keys()):
            raise UserError(
                f"A loss returns the metric {names[0]!r}, but another metric has this name. Rename "
                "the loss's metric."
            )
        out |= group
    return out


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """Returns the config with the tokenizer's number of ids."""
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=vocab_size)
    return dataclasses.replace(config, tokenizer=tokenizer)
