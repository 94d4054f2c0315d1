"""Trains a configuration, or trains on your data directly.

    big-retrieval train --data=FOLDER_OR_FILE
    big-retrieval train --data=FILE --image=file --text=title [--config.total_steps=500 ...]
    big-retrieval train --config=quickstart
    big-retrieval train --config=FILE.py[:arg] [--workdir=DIR] [--config.a.b=value ...]

--data reads pictures with text files, CSV, JSON lines, Parquet or tars. It prints the role of each
column, splits off validation data, chooses a config for this machine, and writes it into the run
folder as config.py. --image, --text, --query, --document, --score and --document_id override the
roles.

--config is a file, or a name that `big-retrieval configs` lists. The run writes only into the run
folder, --workdir. The same command resumes from the newest checkpoint. Only one run writes into a
run folder: another one ends with an error, or waits with --wait.

Several processes (hosts) start the same command; the scripts in launch/ do that. They connect by
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or, with --distributed, by the
variables of a TPU pod or SLURM. The exit status is 2 for an error of the user, and 75 if the same
command may succeed when it is repeated.
"""

import dataclasses
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from big_retrieval import cli
from big_retrieval.auto_config.data_flags import DataFlags, select_data_flags
from big_retrieval.cli.option_groups import BeirOptions
from big_retrieval.cli.options import Flag
from big_retrieval.commands.plan import PlanOptions, plan
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

if TYPE_CHECKING:
    from big_retrieval.config import Config

log = logging.getLogger(__name__)
LOG = True


@dataclass(frozen=True, kw_only=True)
class TrainOptions(PlanOptions, BeirOptions, DataFlags):
    config_source: ClassVar[str] = "data"

    data: str | None = None  # File, folder or pattern of files to train on
    # Folder of published weights to start from; none for random weights
    init: Annotated[str, Flag(needs="data")] = ""
    plan: bool = False  # Print the memory and cost of the run instead of training
    tracker: tuple[str, ...] = ()  # Additional trackers of the curves, e.g. wandb,mlflow
    distributed: bool = False  # Join the other processes of this run first


def main(options: TrainOptions) -> None:
    """Trains the config, or a config that it writes for --data; or plans."""
    for flag in ("topology", "suggest"):
        if getattr(options, flag) and not options.plan:
            raise UserError(f"--{flag} is for --plan. Add --plan, or remove --{flag}.")
    if options.data is None:
        train(options)
        return
    options = write_config(options)
    train(options)
    if (options.run_folder / "results.json").is_file():
        from big_retrieval.auto_config.prepare import next_commands

        commands = next_commands(options.run_folder)
        log.info("next:\n" + "\n".join(f"  {line}" for line in commands))


def write_config(options: TrainOptions) -> TrainOptions:
    """Writes a config for --data; returns the options with this config and its run folder."""
    from big_retrieval.auto_config.prepare import TrainingRequest, prepare
    from big_retrieval.cli.config_file import check_overrides

    if options.config is not None:
        raise UserError(
            "--data writes a new config. Remove --config, or set the data of this config with "
            "--config.data.path=FILE."
        )
    if int(os.environ.get("JAX_NUM_PROCESSES", "1")) > 1 or options.distributed:
        raise UserError(
            "--data is for one process. Run it once with --plan, then start all processes with "
            "--config and the config.py that it wrote."
        )
    if not options.data:
        raise UserError("--data is empty. Use a file or a folder.")
    check_overrides(options.keys)
    name = re.sub(r"[^\w.=-]+", "-", Path(options.data).absolute().resolve().stem).strip("-")
    workdir = options.workdir or Path("runs") / (name or "data")
    with options.owning_folder(workdir, "--workdir"):
        changed = [key for key in options.keys if key.startswith("-")]
        request = TrainingRequest(options.data, select_data_flags(options), options.init)
        file = prepare(request, workdir, changed)
    return dataclasses.replace(options, config=str(file), workdir=workdir)


def train(options: TrainOptions) -> None:
    from big_retrieval.config.checks import check

    config = options.add_evaluators(options.load_config())
    config, workdir = with_trackers(config, options.tracker), options.run_folder
    check(config)
    if options.plan:
        plan(config, workdir, options)
        return
    from big_retrieval.runtime import distributed

    process, processes = distributed.join_processes(options.distributed)
    log.info("importing the trainer ...")
    from big_retrieval.runtime.watchdog import Watchdog
    from big_retrieval.train import loop

    watchdog = Watchdog(workdir, config.hang_after, process=process, processes=processes)
    with distributed.retryable(processes, watchdog.late):
        lock = lock_folder(workdir, process, processes, wait=options.wait)
    try:
        with watchdog, distributed.retryable(processes, watchdog.late):
            loop.train(config, workdir)
    finally:
        lock.release()


def lock_folder(workdir: Path, process: int, processes: int, *, wait: bool = False) -> locks.Lock:
    """Makes this run the owner of the run folder; the first process holds the lock for all."""
    from big_retrieval.runtime import distributed

    path = locks.in_folder(workdir)
    lock = locks.Lock(path, output=workdir, flag="--workdir", wait=wait, lost=cli.fail)
    broadcast = distributed.broadcast if processes > 1 else str
    try:
        if process == 0:
            lock.acquire(broadcast)
        else:
            locks.follow(broadcast)
    except UserError:
        if process == 0 and processes > 1:
            time.sleep(2)  # if this process ends, jax ends the others without a message
        raise
    return lock


def with_trackers(config: "Config", types: Sequence[str]) -> "Config":
    """Returns a config with additional trackers by type; existing trackers of a type stay."""
    from big_retrieval.config.trackers import Tracker

    by_type = {cls.type: cls for cls in Tracker.registered()} if types else {}
    trackers = dict(config.trackers)
    for name in types:
        if name not in by_type:
            raise UserError(f"--tracker: {name!r} is unknown; known: {', '.join(sorted(by_type))}.")
        if all(tracker.type != name for tracker in trackers.values()):
            trackers[name] = by_type[name]()
    return dataclasses.replace(config, trackers=trackers)
