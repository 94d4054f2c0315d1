"""From a checked configuration to model, objective, optimizer and steps, without data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.losses.objective import Objective, make_objective
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.sparse.terms import Words
from big_retrieval.train.averaging import Average
from big_retrieval.train.optimizer import Updates, make_updates
from big_retrieval.train.schedules import Timeline
from big_retrieval.train.state import (
    TrainState,
    abstract_state,
    abstract_variables,
    count_parameters,
)
from big_retrieval.train.step import Step, make_step


@dataclass(frozen=True)
class BuiltModel:
    """The parts that need no data and no run folder; full-size configs are compiled from this.

    Attributes:
      config: checked.
      mesh: the devices.
      model: towers and heads.
      objective: from representations to the loss.
      updates: the optimizer with the phases of the run.
      steps: the training step of each phase, not compiled.
      draw: makes the initial state on the mesh.
      abstract: the state without values, with shardings.
      parameters: number of parameters per part.
      undivided: sentences of `parallel.undivided`.
    """

    config: Config
    mesh: Mesh
    model: RetrievalModel
    objective: Objective
    updates: Updates
    steps: tuple[Step, ...]
    draw: Callable[[], TrainState]
    abstract: Any
    parameters: Mapping[str, int]
    undivided: Sequence[str] = ()

    @property
    def step(self) -> Step:
        """The training step of the first phase."""
        return self.steps[0]


def build_model(
    config: Config,
    mesh: Mesh,
    *,
    vocab_size: int,
    total_steps: int,
    steps_per_epoch: float | None = None,
    words: Words | None = None,
) -> BuiltModel:
    """Model, objective, optimizer and steps of a checked config, with nothing allocated.

    Args:
      config: checked.
      mesh: the devices.
      vocab_size: of the tokenizer.
      total_steps: the length of the run.
      steps_per_epoch: of the run; None where times do not matter, see `Timeline`.
      words: the tokenizer, see `make_model`.

    Raises:
      UserError: what `make_updates` raises, or a word table that is too small.
    """
    _check_vocabulary(config, vocab_size)
    model = make_model(config, vocab_size, words)
    objective = make_objective(config, vocab_size)
    variables = abstract_variables(model, objective)
    _check_names(variables[0])
    timeline, averages = Timeline(total_steps, steps_per_epoch), config.optimizer.averaging
    updates = make_updates(config.optimizer, variables[0], timeline)
    draw, abstract, undivided = abstract_state(
        model, objective, variables, updates, mesh, averages=averages, seed=config.seed
    )
    average = Average(averages, timeline)
    steps = tuple(
        make_step(config, model, objective, updates, average, phase)
        for phase in range(len(updates.spans))
    )
    parameters = count_parameters(variables[0])
    built = (config, mesh, model, objective, updates, steps, draw, abstract, parameters)
    return BuiltModel(*built, undivided)


def _check_names(params: Any) -> None:
    """Raises where the name of a parameter has a slash, which separates the names of modules."""
    for path, _ in jax.tree_util.tree_flatten_with_path(nn.unbox(params))[0]:
        for key in path:
            if "/" in str(key.key):
                names = ", ".join(repr(each.key) for each in path)
                raise UserError(f"A parameter has a slash in its name ({names}). Rename it.")


def _check_vocabulary(config: Config, vocab_size: int) -> None:
    """Raises where a word table has fewer rows than the tokenizer has ids."""
    for name, tower in config.towers.items():
        rows = tower.vocab_size
        if rows is not None and rows < vocab_size:
            raise UserError(
                f"config.towers.{name}.vocab_size is {rows}, but the tokenizer has {vocab_size} "
                "ids: give at least as many rows, or None for as many."
            )
