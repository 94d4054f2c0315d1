"""From a checked configuration to model, objective, optimiser and step, without data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import optax
from jax.sharding import Mesh

from big_retrieval.columns import Words
from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.losses.objective import Objective, make_objective
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.train.optimizer import make_optimizer
from big_retrieval.train.state import (
    TrainState,
    abstract_state,
    abstract_variables,
    count_parameters,
)
from big_retrieval.train.step import Step, make_step


@dataclass(frozen=True)
class Model:
    """The parts that need no data and no run folder; full-size configs are compiled from this.

    Attributes:
      config: checked.
      mesh: the devices.
      model: towers and heads.
      objective: from representations to the loss.
      tx: the optimiser.
      step: the training step, not compiled.
      draw: makes the initial state on the mesh.
      abstract: the state without values, with shardings.
      parameters: number of parameters per part.
    """

    config: Config
    mesh: Mesh
    model: RetrievalModel
    objective: Objective
    tx: optax.GradientTransformation
    step: Step
    draw: Callable[[], TrainState]
    abstract: Any
    parameters: Mapping[str, int]


def build_model(
    config: Config,
    mesh: Mesh,
    *,
    vocab_size: int,
    total_steps: int,
    words: Words | None = None,
) -> Model:
    """Model, objective, optimiser and step of a checked config, with nothing allocated.

    Args:
      config: checked.
      mesh: the devices.
      vocab_size: of the tokenizer.
      total_steps: the length of the run.
      words: the tokenizer, see `make_model`.

    Raises:
      UserError: an optimiser rule that matches no parameter, or a word table that is too small.
    """
    _check_vocabulary(config, vocab_size)
    model = make_model(config, vocab_size, words)
    objective = make_objective(config)
    variables = abstract_variables(model, objective)
    params = nn.unbox(variables[0])
    tx, learning_rate = make_optimizer(config.optimizer, params, total_steps)
    averaged = config.optimizer.ema_decay is not None
    draw, abstract = abstract_state(
        model, objective, variables, tx, mesh, averaged=averaged, seed=config.seed
    )
    step = make_step(config, model, objective, tx, learning_rate)
    return Model(config, mesh, model, objective, tx, step, draw, abstract, count_parameters(params))


def _check_vocabulary(config: Config, vocab_size: int) -> None:
    """Raises where a word table has fewer rows than the tokenizer has ids."""
    for name, tower in config.towers.items():
        rows = tower.vocab_size
        if rows is not None and rows < vocab_size:
            raise UserError(
                f"config.towers.{name}.vocab_size is {rows}, but the tokenizer has {vocab_size} "
                "ids: give at least as many rows, or None for as many."
            )
