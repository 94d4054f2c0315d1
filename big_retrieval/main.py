"""Trains a configuration.

    python -m big_retrieval.main --config=FILE.py[:arg] [--workdir=DIR] [--config.a.b=v]

`big-retrieval train` is the same command. With --plan it trains nothing and says what the run would
need and cost, here or, with --topology, on devices that are not here; the same goes into plan.json
of the run folder.

--beir=FOLDER adds BEIR's data sets as evaluators of a text model (docs/DATA.md).

Several processes (hosts) start the same command (launch/ does it for them). Where
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set they find each other by these;
on a TPU pod or under SLURM, with --distributed, by what the platform says. The exit status is 2 for
a user's mistake and 75 where the same command started again may well succeed. Only one run writes
into a run folder: another one ends with a sentence, or waits for the first with --wait.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.cli import beir
from big_retrieval.config import Config
from big_retrieval.config.checks import check, mesh_shape
from big_retrieval.config.trackers import Tracker
from big_retrieval.errors import UserError
from big_retrieval.plan import environment, targets
from big_retrieval.runtime import chips, distributed, locks

log = logging.getLogger(__name__)
DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the other processes of this run first")
PLAN = flags.DEFINE_bool("plan", False, "Say what the run needs and costs instead of training")
TOPOLOGY = flags.DEFINE_string("topology", None, "Devices to plan for, e.g. h200-1, v5e-256, cpu-8")
SUGGEST = flags.DEFINE_bool("suggest", False, "With --plan: compile other settings, fastest first")
TRACKER = flags.DEFINE_list("tracker", [], "Further trackers of the curves, e.g. wandb,mlflow")


def plan(config: Config, workdir: Path) -> None:
    """Prints what the run needs and costs, and writes plan.json.

    Raises:
      UserError: an unknown topology, or a mesh or batch that does not divide over it.
    """
    asked = None if TOPOLOGY.value is None else chips.parse(TOPOLOGY.value)
    if asked is not None:
        mesh_shape(config, asked[1])
        targets.check_count(*asked)
        environment.prepare(*asked)
    from big_retrieval.plan.plan import run

    file = workdir / "plan.json"
    with cli.owning(locks.beside(file), file, "--workdir"):
        run(config, workdir, asked, suggest=SUGGEST.value)


def own(workdir: Path, process: int, processes: int) -> locks.Lock:
    """Makes this run the owner of the run folder; the first process holds the lock for all.

    Args:
      workdir: the run folder.
      process: number of this process.
      processes: of the run.

    Raises:
      UserError: another run writes to it, or nobody can.
    """
    lock = locks.Lock(
        locks.in_folder(workdir), of=workdir, flag="--workdir", wait=cli.WAIT.value, lost=cli.fail
    )
    broadcast = distributed.broadcast if processes > 1 else str
    try:
        if process == 0:
            lock.acquire(broadcast)
        else:
            locks.follow(broadcast)
    except UserError:
        if process == 0 and processes > 1:
            time.sleep(2)  # the others need this process to end with a sentence of their own
        raise
    return lock


def with_trackers(config: Config, types: Sequence[str]) -> Config:
    """Returns a config with further trackers by their types; existing ones of a type stay.

    Raises:
      UserError: there is no such tracker.
    """
    known = {cls.type: cls for cls in Tracker.registered()}
    trackers = dict(config.trackers)
    for name in types:
        if name not in known:
            raise UserError(f"--tracker: {name!r} is unknown; known: {', '.join(sorted(known))}.")
        if all(tracker.type != name for tracker in trackers.values()):
            trackers[name] = known[name]()
    return dataclasses.replace(config, trackers=trackers)


def main() -> None:
    """Reads the configuration and trains, or plans."""
    if TOPOLOGY.value is not None and not PLAN.value:
        raise UserError("--topology is for --plan: a run takes the devices that are there.")
    if SUGGEST.value and not PLAN.value:
        raise UserError("--suggest is for --plan. Add --plan, or remove --suggest.")
    config, workdir = beir.added(cli.load_config()), cli.workdir()
    config = with_trackers(config, TRACKER.value)
    check(config)
    if PLAN.value:
        plan(config, workdir)
        return
    process, processes = distributed.join(DISTRIBUTED.value)
    log.info("importing the trainer ...")
    from big_retrieval.runtime.watchdog import Watchdog
    from big_retrieval.train.loop import train

    watchdog = Watchdog(workdir, config.hang_after, process=process, processes=processes)
    with distributed.retryable(processes, watchdog.late):
        lock = own(workdir, process, processes)
    try:
        with watchdog, distributed.retryable(processes, watchdog.late):
            train(config, workdir)
    finally:
        lock.release()


if __name__ == "__main__":
    cli.run(main, log=True, about=__doc__ or "")
