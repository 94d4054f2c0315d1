"""What a run starts from: random parameters, or those that `config.init` names."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source, make_tokenizer
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel, any_mesh, put_together
from big_retrieval.train import averaging
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.optimizer import names_of
from big_retrieval.train.state import TrainState

log = logging.getLogger(__name__)


def first_state(parts: BuiltModel, tokenizer: FixedLengthTokenizer) -> TrainState:
    """The state of step 0: drawn from the seed, then filled by towers and from `config.init`.

    Args:
      parts: of the run.
      tokenizer: the run's, compared with that of a checkpoint.

    Raises:
      UserError: a checkpoint, or a file of a tower's, that cannot be read or does not fit.
    """
    config = parts.config
    with parallel.use(parts.mesh):
        state = parts.draw()
    given = _given_by_towers(config, state.params, tokenizer)
    if not config.init and not given:
        return state
    from big_retrieval.interop.initial_weights import read_initial_weights, replace_arrays

    shapes = {name: x.shape for name, x in names_of(parts.abstract.params).items()}
    stats = {name: x.shape for name, x in names_of(parts.abstract.batch_stats).items()}
    found = read_initial_weights(config, shapes, stats, tokenizer)
    for note in found.notes:
        log.info(f"init: {note}")
    params = replace_arrays(state.params, given | found.params)
    batch_stats = replace_arrays(state.batch_stats, found.stats)
    ema = averaging.first(config.optimizer.averaging, params)["ema"]
    return state.replace(params=params, batch_stats=batch_stats, ema=ema)  # type: ignore


def _given_by_towers(
    config: Config, params: Any, tokenizer: FixedLengthTokenizer
) -> dict[str, np.ndarray]:
    """Path -> array, of the parameters that towers themselves start from something else."""
    leaves, found = names_of(params), {}
    for name, tower in config.towers.items():

        def drawn(path: str, name: str = name) -> np.ndarray:
            return parallel.fetch(leaves[f"{name}/{path}"])

        given = tower.first_values(drawn, tokenizer)
        for note in given.notes:
            log.info(f"{name}: {note}")
        for path, array in given.params.items():
            wanted = leaves[f"{name}/{path}"].shape
            if array.shape != wanted:
                raise UserError(
                    f"config.towers.{name}: {path} is to start from an array of the shape "
                    f"{array.shape}, but the parameter has {wanted}; make its keys fit."
                )
            found[f"{name}/{path}"] = array
    return found


def run_length(config: Config, records: int) -> int:
    """Steps of a run; `total_steps` wins over `total_examples`, that over `total_epochs`."""
    if config.total_steps is not None:
        return config.total_steps
    examples = config.total_examples or (config.total_epochs or 0) * records
    return max(1, round(examples / config.batch_size))


def untrained(config: Config, *, batch_size: int) -> TrainedModel:
    """The model of a config before its first step, on all devices of this machine.

    The parameters are those of a run's step 0, with the tokenizer that the run would make; no run
    folder is made or read.

    Args:
      config: typed; not yet checked.
      batch_size: rows encoded at a time.

    Raises:
      UserError: an impossible configuration, training data that are missing, or a checkpoint in
        `config.init` that does not fit.
    """
    check(config, trains=False)
    source = make_source(config.data)
    tokenizer = make_tokenizer(config, source)
    mesh = parallel.make_mesh(any_mesh(config), jax.local_devices())
    steps = run_length(config, len(source))
    parts = build_model(
        config, mesh, vocab_size=tokenizer.vocab_size, total_steps=steps, words=tokenizer
    )
    if config.init:
        log.info("untrained, but not random: it starts from what config.init names")
    else:
        log.info(f"untrained: all parameters are random, of config.seed {config.seed}")
    weights = jax.device_get(first_state(parts, tokenizer).weights)
    return put_together(Path("start"), config, tokenizer, weights, batch_size)
