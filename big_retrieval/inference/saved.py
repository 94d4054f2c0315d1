"""Contents of checkpoint folders without the model: checkpoint choice, config, arrays."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from big_retrieval import config as configs
from big_retrieval.config import Config, schema
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.io import manifest
from big_retrieval.io.manifest import to_json
from big_retrieval.models.towers import with_stats

T = TypeVar("T")
log = logging.getLogger(__name__)
RUN = "{run}/"  # start of paths inside of the run folder in config.json, so that it can be moved


def read_from(path: str | Path, read: Callable[[Path], T], step: int | None = None) -> T:
    """Calls `read` with the folder of `find`, or of the next checkpoint if it is pruned then."""
    folder = find(path, step)
    try:
        return read(folder)
    except Exception:
        if (folder / manifest.MANIFEST).is_file():
            raise
        log.info(f"{folder} was removed by its run while it was read: reading the next checkpoint")
        return read_from(path, read, step)


def find(path: str | Path, step: int | None = None) -> Path:
    """Finds and verifies the checkpoint that `inference.load.load` opens.

    Args:
      path: a run folder, a folder of checkpoints or one checkpoint folder.
      step: step of the checkpoint; None as in `load`.
    """
    root = Path(path)
    if not root.is_dir():
        raise UserError(f"No folder {root}. Give a run folder or a checkpoint folder.")
    if (root / "index.json").is_file():  # as in retrieval/folder.py
        raise UserError(
            f"{root} is an index, not a model. Open it with big_retrieval.retrieval.open_index or "
            f"`big-retrieval search --index={root}`."
        )
    if not (root / "checkpoints").is_dir():
        return manifest.newest_intact(root, step)
    checkpoints = root / "checkpoints"
    evaluated_step = _evaluated_step(root, checkpoints)
    folder = manifest.newest_intact(checkpoints, step, first=evaluated_step)
    newest = max(manifest.step_of(path.name) or 0 for path in checkpoints.iterdir())
    complete = (checkpoints / str(newest) / manifest.MANIFEST).is_file()
    if step is None and not complete:
        log.info(f"using step {folder.name} of {root}: step {newest} is not completely saved")
    elif step is None and int(folder.name) != newest and int(folder.name) == evaluated_step:
        log.info(f"using step {folder.name} of {root}, the best step, as in results.json")
    return folder


def _evaluated_step(run: Path, checkpoints: Path) -> int | None:
    """Reads the step of the metrics in results.json; None if the run has continued since."""
    try:
        results = json.loads((run / "results.json").read_text())
        continued = results["steps"] != max(manifest.complete_steps(checkpoints))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if continued else results.get("evaluated_step")


def read_config(folder: Path) -> Config:
    """Reads config.json of a run or checkpoint folder; raises a UserError if that fails."""
    path = folder / "config.json"
    try:
        return configs.load_saved(parse_config(path.read_text(), manifest.run_folder(folder)))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON. Restore it.") from None
    except PluginNeeded:
        raise
    except UserError as error:
        raise UserError(f"{path} is not a config of this version: {error}") from None


def config_json(config: Config, run: Path) -> bytes:
    """Returns the content of config.json in a run folder and its checkpoints."""
    return to_json(schema.to_plain(config)).replace(_start(run).encode(), f'"{RUN}'.encode())


def parse_config(text: str, run: Path) -> Any:
    """Parses the content of `config_json`; paths inside of the run folder become absolute."""
    return json.loads(text.replace(f'"{RUN}', _start(run)))


def _start(run: Path) -> str:
    """Returns the start of JSON strings of paths inside of a run folder."""
    return json.dumps(f"{os.path.abspath(run)}/")[:-1]


def restore_weights(folder: Path, config: Config) -> Any:
    """Restores `TrainState.weights` from a verified checkpoint folder, as numpy arrays."""
    averaged = config.optimizer.averaging.type == "ema"
    params = restore_params(folder, "ema" if averaged else "params")
    normed = any(part.normed for part in config.towers_and_heads().values())
    return with_stats(params, restore_params(folder, "batch_stats") if normed else {})


def restore_params(folder: Path, name: str = "params") -> Any:
    """Restores a tree of a verified checkpoint folder as numpy arrays, on any mesh.

    Args:
      name: tree of the state: `params`, `ema` or `batch_stats`.
    """
    state = (folder / "state").resolve()
    with ocp.PyTreeCheckpointer() as orbax:
        tree = dict(orbax.metadata(state).item_metadata.tree[name])
        tree.pop("losses", None)  # parameters of losses are only for training
        template = jax.tree.map(lambda _: 0, tree, is_leaf=lambda x: hasattr(x, "shape"))
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), template)
        restored = orbax.restore(
            state,
            args=ocp.args.PyTreeRestore(
                item={name: template}, restore_args={name: args}, partial_restore=True
            ),
        )
    return restored[name]
