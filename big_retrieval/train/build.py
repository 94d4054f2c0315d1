"""Model, objective, optimizer and steps of a config, and the first state, without a run folder."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source, make_tokenizer
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel, put_together
from big_retrieval.losses.objective import Objective, with_vocabulary
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.sparse.terms import Words
from big_retrieval.train import averaging
from big_retrieval.train.averaging import Average
from big_retrieval.train.groups import make_updates
from big_retrieval.train.optimizer import Updates, names_of
from big_retrieval.train.schedules import Timeline
from big_retrieval.train.state import TrainState, abstract_state, abstract_variables
from big_retrieval.train.step import Step, make_step

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuiltModel:
    """The parts of a run that need no data.

    Attributes:
      config: checked.
      steps: training step of each phase, not compiled.
      draw: creates the random state of step 0 on the mesh.
      abstract: state without values, with shardings.
      undivided: messages of `parallel.undivided`.
    """

    config: Config
    mesh: Mesh
    model: RetrievalModel
    objective: Objective
    updates: Updates
    steps: tuple[Step, ...]
    draw: Callable[[], TrainState]
    abstract: Any
    undivided: Sequence[str]

    @property
    def parameters(self) -> dict[str, int]:
        """Number of parameters per top-level part (tower, head, scalars, losses)."""
        parts = self.abstract.params.items()
        return {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in parts}


def build_model(
    config: Config,
    mesh: Mesh,
    *,
    vocab_size: int,
    total_steps: int,
    steps_per_epoch: float | None = None,
    words: Words | None = None,
) -> BuiltModel:
    """Builds the model, objective, optimizer and steps of a checked config; allocates no arrays.

    Args:
      steps_per_epoch: None if only the order of phases matters, see `Timeline`.

    Raises:
      UserError: see `make_updates`; or a word table is too small.
    """
    _check_vocabulary(config, vocab_size)
    model = make_model(config, vocab_size, words)
    objective = Objective(with_vocabulary(config, vocab_size))
    variables = abstract_variables(model, objective)
    params = variables[0]
    _check_names(params)
    timeline, averages = Timeline(total_steps, steps_per_epoch), config.optimizer.averaging
    updates = make_updates(config.optimizer, params, timeline)
    draw, abstract, undivided = abstract_state(
        model, objective, variables, updates, mesh, averages=averages, seed=config.seed
    )
    average = Average(averages, timeline)
    steps = tuple(
        make_step(config, model, objective, updates, average, phase)
        for phase in range(len(updates.spans))
    )
    return BuiltModel(config, mesh, model, objective, updates, steps, draw, abstract, undivided)


def _check_names(params: Any) -> None:
    """Raises if the name of a parameter has a slash, which separates the names of modules."""
    for path, _ in jax.tree_util.tree_flatten_with_path(nn.unbox(params))[0]:
        names = [str(key.key) for key in path]
        if "/" in "".join(names):
            raise UserError(f"A parameter has a slash in its name ({names}). Rename it.")


def _check_vocabulary(config: Config, vocab_size: int) -> None:
    """Raises if a word table has fewer rows than the tokenizer has ids."""
    for name, tower in config.towers.items():
        rows = tower.vocab_size
        if rows is not None and rows < vocab_size:
            raise UserError(
                f"config.towers.{name}.vocab_size is {rows}, but the tokenizer has {vocab_size} "
                "ids. Raise it, or set None for the tokenizer's size."
            )


def first_state(parts: BuiltModel, tokenizer: FixedLengthTokenizer) -> TrainState:
    """Returns the state of step 0: drawn from the seed, then filled by towers and `config.init`.

    Raises:
      UserError: a checkpoint or a tower's file cannot be read or does not fit.
    """
    config = parts.config
    with parallel.use(parts.mesh):
        state = parts.draw()
    params = _params_of_towers(config, state.params, tokenizer)
    if not config.init and not params:
        return state
    # Imported here, as most runs start from random parameters.
    from big_retrieval.interop.initial_weights import read_initial_weights, replace_arrays

    shapes = {name: x.shape for name, x in names_of(state.params).items()}
    stats = {name: x.shape for name, x in names_of(state.batch_stats).items()}
    initial = read_initial_weights(config, shapes, stats, tokenizer)
    for note in initial.notes:
        log.info(f"init: {note}")
    params = replace_arrays(state.params, params | initial.params)
    batch_stats = replace_arrays(state.batch_stats, initial.stats)
    ema = averaging.first(config.optimizer.averaging, params)["ema"]
    return state.replace(params=params, batch_stats=batch_stats, ema=ema)  # type: ignore


def _params_of_towers(
    config: Config, params: Any, tokenizer: FixedLengthTokenizer
) -> dict[str, np.ndarray]:
    """Returns name -> array of the parameters that towers read from their own files."""
    leaves, arrays = names_of(params), {}
    for name, tower in config.towers.items():

        def drawn(path: str, name: str = name) -> np.ndarray:
            return parallel.fetch(leaves[f"{name}/{path}"])

        first = tower.first_values(drawn, tokenizer)
        for note in first.notes:
            log.info(f"{name}: {note}")
        for path, array in first.params.items():
            expected = leaves[f"{name}/{path}"].shape
            if array.shape != expected:
                raise UserError(
                    f"config.towers.{name}: the initial value of {path} has shape {array.shape}, "
                    f"but the parameter has {expected}. Change the keys of the tower."
                )
            arrays[f"{name}/{path}"] = array
    return arrays


def run_length(config: Config, records: int) -> int:
    """Returns the steps of a run, from total_steps, else total_examples, else total_epochs."""
    if config.total_steps is not None:
        return config.total_steps
    examples = config.total_examples or (config.total_epochs or 0) * records
    return max(1, round(examples / config.batch_size))


def untrained(config: Config, *, batch_size: int) -> TrainedModel:
    """Returns the model of a run's step 0 with its tokenizer, on all devices of this machine.

    Raises:
      UserError: an impossible configuration, missing training data, or a checkpoint in
        `config.init` that does not fit.
    """
    check(config, trains=False)
    source = make_source(config.data)
    tokenizer = make_tokenizer(config, source)
    parts = build_model(
        config,
        parallel.local_mesh(),
        vocab_size=tokenizer.vocab_size,
        total_steps=run_length(config, len(source)),
        words=tokenizer,
    )
    random = f"random parameters of config.seed {config.seed}"
    log.info(f"untrained model: {'parameters from config.init' if config.init else random}")
    weights = jax.device_get(first_state(parts, tokenizer).weights)
    return put_together(Path("start"), config, tokenizer, weights, batch_size)
