"""Checkpoints of a run: Orbax writes the arrays, `io/manifest.py` marks complete folders."""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from big_retrieval.config import Config
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.fingerprint import versions
from big_retrieval.inference.load import TrainedModel
from big_retrieval.inference.saved import config_json
from big_retrieval.io import durable
from big_retrieval.io.manifest import (
    MANIFEST,
    complete_steps,
    damage,
    read_meta,
    step_of,
    to_json,
    write_evaluation,
    write_manifest,
)
from big_retrieval.io.space import write_error
from big_retrieval.runtime import locks

log = logging.getLogger(__name__)
# Orbax's timeout of a save in seconds: never, because its clock may jump. The watchdog ends a save
# that hangs.
PATIENCE = 10**9
# Minimum bytes of a part of a replicated array that one device writes. Cutting arrays into parts
# delays training: Orbax compiles a program per shape and runs it at every save. (120 arrays of a
# few KB on 8 virtual devices: 3 s at the first save, 0.4 s at later ones; without cuts, 0.1 s.)
SMALLEST_PART = 1 << 16


class Checkpoints:
    """The checkpoints of one run: asynchronous saving, verification, retention.

    Attributes:
      root: folder `checkpoints` of the run.
      damaged: True if this process moved damaged checkpoints aside.
    """

    def __init__(
        self,
        root: Path,
        *,
        files: Mapping[str, bytes],
        logs: Sequence[Path] = (),
        best_metric: str = "",
        best_mode: str = "max",
    ) -> None:
        """Opens the folder without reading or writing.

        Args:
          files: small files that every checkpoint contains (config.json, tokenizer.json).
          logs: files of the run that are synced to the disk before a checkpoint counts.
          best_metric: metric whose best checkpoint is kept; empty for none.
        """
        self.root = root
        self.damaged = False
        self._files, self._logs = dict(files), tuple(logs)
        self._best = (best_metric, 1 if best_mode == "max" else -1)
        # A custom handler would need Orbax's private modules.
        handler: Any = ocp.type_handlers.get_type_handler(jax.Array)
        handler._min_slice_bytes_for_replica_parallel = SMALLEST_PART
        self._orbax = ocp.StandardCheckpointer(
            async_options=ocp.options.AsyncOptions(timeout_secs=PATIENCE)
        )
        self._executor = ThreadPoolExecutor(1)
        self._saving: Future[None] | None = None

    def save(self, step: int, state: Any, meta: Mapping[str, Any]) -> None:
        """Starts saving; returns once the arrays have left the devices.

        Raises:
          UserError: the previous save failed (no space, no permission).
        """
        self.wait()
        locks.check()
        folder = self.root / str(step)
        try:
            if jax.process_index() == 0:
                self._clear(folder)
                durable.make_folder(self.root)  # syncs at the first save only: the loop waits
                folder.mkdir()
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices(f"checkpoint {step}")
            self._orbax.save(folder.resolve() / "state", state)
        except OSError as error:
            raise self._save_error(error) from error
        self._saving = self._executor.submit(self._finish, folder, dict(meta))

    def _clear(self, folder: Path) -> None:
        """Removes files of a killed save; moves a finished checkpoint aside."""
        if (folder / MANIFEST).exists() and not folder.is_symlink():
            durable.replace(folder, durable.free_name(folder, "replaced"))
        else:
            durable.remove(folder)

    def record_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of a late evaluation to a finished checkpoint.

        Raises:
          UserError: the file cannot be written.
        """
        if jax.process_index() != 0:
            return
        locks.check()
        try:
            write_evaluation(self.root / str(step), metrics)
        except OSError as error:
            raise self._save_error(error) from error

    def values(self, step: int) -> dict[str, Any]:
        """Returns the training and evaluation metrics of a verified step; {} if not logged."""
        meta = read_meta(self.root / str(step))
        return {**meta.get("training", {}), **meta["metrics"]}

    def _finish(self, folder: Path, meta: dict[str, Any]) -> None:
        try:
            self._orbax.wait_until_finished()
            locks.check()  # another run may own the folder now
            if jax.process_index() == 0:
                for name, data in {**self._files, "meta.json": to_json(meta)}.items():
                    (folder / name).write_bytes(data)  # the manifest syncs them
                for path in self._logs:
                    with contextlib.suppress(FileNotFoundError):
                        durable.sync_file(path)
                write_manifest(folder)
                # The checkpoint now survives a power loss.
                with contextlib.suppress(OSError):  # the next save prunes again
                    self._prune()
        except UserError:  # from `locks.check`: another run owns the folder
            raise
        except BaseException as cause:
            lost = isinstance(cause, jax.errors.JaxRuntimeError)  # another process has ended
            error = cause if lost else self._save_error(cause)
            if jax.process_index() == 0 and not (folder / MANIFEST).exists():
                with contextlib.suppress(OSError):
                    durable.remove(folder)
            raise error from None if lost else cause

    def wait(self) -> None:
        """Waits until the last save is complete.

        Raises:
          UserError: the save failed.
          JaxRuntimeError: another process of the run has ended.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _save_error(self, cause: BaseException) -> UserError:
        """Returns the error of a failed save: folder, free space and newest checkpoint."""
        fallback = "the newest checkpoint"
        with contextlib.suppress(OSError):  # the disk may have failed
            steps = complete_steps(self.root)
            fallback = f"checkpoint {steps[-1]}" if steps else "the beginning"
        return write_error(self.root, cause, "a checkpoint", fallback)

    def _best_first(self, steps: list[int]) -> list[int]:
        """Returns the steps with the metric: best first, later first among equal values."""
        metric, sign = self._best
        scores = {}
        for step in steps if metric else ():
            try:
                value = read_meta(self.root / str(step))["metrics"].get(metric, math.nan)
            except (OSError, ValueError, KeyError) as error:  # damaged since it was written
                log.warning(f"checkpoints/{step}: meta.json cannot be read ({error!r})")
                continue
            if not math.isnan(value):
                scores[step] = sign * value
        return sorted(scores, key=lambda step: (scores[step], step), reverse=True)

    def evaluated(self, step: int) -> bool:
        """Returns False if a verified checkpoint has no metrics because an evaluator raised."""
        return read_meta(self.root / str(step)).get("evaluated", True)

    def _prune(self) -> None:
        """Removes incomplete checkpoints (or links), and all except the newest two and the best."""
        steps = complete_steps(self.root)
        kept_steps = {*steps[-2:], *self._best_first(steps)[:1]}
        for path in list(self.root.iterdir()):
            step = step_of(path.name)
            if step is None or step in kept_steps or step > steps[-1]:
                continue
            with contextlib.suppress(OSError):  # the next save prunes again
                if path.is_dir() and not path.is_symlink():
                    (path / MANIFEST).unlink(missing_ok=True)  # makes the checkpoint incomplete
                durable.remove(path)

    def newest(self) -> int | None:
        """Returns the newest intact step, equal on all processes; moves damaged steps aside."""
        return self._first_intact(lambda steps: steps[::-1])

    def best(self) -> int | None:
        """Returns the best intact step, like `newest`; None if no checkpoint has the metric."""
        return self._first_intact(self._best_first)

    def _first_intact(self, order: Callable[[list[int]], list[int]]) -> int | None:
        step = -1
        if jax.process_index() == 0:
            step = next(filter(self._is_intact, order(complete_steps(self.root))), -1)
        if jax.process_count() > 1:
            step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
        return None if step < 0 else step

    def _is_intact(self, step: int) -> bool:
        """Verifies a checkpoint; moves a damaged one aside."""
        folder = self.root / str(step)
        reason = damage(folder)
        if reason is not None:
            aside = durable.free_name(folder, "damaged")
            folder.rename(aside)
            self.damaged = True
            log.warning(f"checkpoints/{step} is damaged ({reason}); moved to {aside}")
        return reason is None

    def restore(self, step: int, abstract: Any) -> Any:
        """Returns the state of a verified step with the shardings of `abstract`, on any mesh.

        Raises:
          UserError: an array is missing, unknown, or of another shape or type.
        """
        folder = (self.root / str(step) / "state").resolve()
        saved: Any = self._orbax.metadata(folder)
        tree = saved.item_metadata.tree
        parts = (part.name for part in dataclasses.fields(abstract))
        missing = next((f"it has no {name}" for name in parts if name not in tree), None)
        reason = missing or _misfit(tree, abstract)
        if reason is not None:
            raise UserError(
                f"{folder.parent} does not fit this run: {reason}. Use the version of the code "
                "that wrote it, or start from scratch in another --workdir."
            )
        return self._orbax.restore(folder, abstract)

    def close(self) -> None:
        """Waits for the last save and ends the threads."""
        self.wait()
        self._executor.shutdown()
        self._orbax.close()


def write_model(model: TrainedModel, folder: Path) -> None:
    """Writes a model as checkpoint 0 of a folder, in the format of a run's checkpoints.

    Raises:
      UserError: the folder cannot be written.
    """
    meta = {
        "step": 0,
        "metrics": {},
        "origin": str(model.folder),
        "vocab_size": model.tokenizer.vocab_size,
        "versions": versions(),
    }
    files = model_files(model.config, model.tokenizer, folder)
    with contextlib.closing(Checkpoints(folder / "checkpoints", files=files)) as checkpoints:
        params = dict(model.weights)
        batch_stats = params.pop("batch_stats", {})
        checkpoints.save(0, {"params": params, "batch_stats": batch_stats}, meta)


def model_files(config: Config, tokenizer: FixedLengthTokenizer, run: Path) -> dict[str, bytes]:
    """Returns the small files of a checkpoint in a run folder, name -> content."""
    return {
        "config.json": config_json(config, run),
        "tokenizer.json": tokenizer.to_json().encode(),
    }


def _misfit(saved: Any, abstract: Any) -> str | None:
    """Returns a message about the first array that differs from the expected tree."""
    have, want = ocp.tree.to_flat_dict(saved, sep="/"), ocp.tree.to_flat_dict(abstract, sep="/")
    for name, array in want.items():
        if name not in have:
            return f"it has no {name}"
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            continue  # a random key, which is saved as integers
        if tuple(have[name].shape) != array.shape:
            return f"{name} has shape {tuple(have[name].shape)} instead of {array.shape}"
        if have[name].dtype != array.dtype:
            return f"{name} has type {have[name].dtype} instead of {array.dtype}"
    unknown = [name for name in have if name not in want]
    return f"it has {unknown[0]}, which the run does not have" if unknown else None
