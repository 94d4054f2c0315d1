"""Kills a run of two processes at random times, and compares it with an uninterrupted run.

    python -m tests.launch.kills --kills=200 --seed=0 --folder=FOLDER

Every third kill waits for a save: a step folder without a manifest. A kill ends one of the
processes, and a little later the other, or both at once. Then the run starts again. Both processes
are forks of this one, which has imported everything. Prints one line of JSON, and exits with status
1 at a difference.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from big_retrieval.io.manifest import MANIFEST, step_of
from big_retrieval.runtime import distributed
from big_retrieval.runtime.processes import free_port
from big_retrieval.runtime.watchdog import Watchdog
from big_retrieval.train import summary
from big_retrieval.train.loop import train
from tests.helpers import results, rows, tiny

PR_SET_PDEATHSIG = 1
PATIENCE = 300  # seconds for a start, on a busy machine
CHANGING = ("examples_per_second", "data_wait", "mfu")  # measured times differ between runs


def process(number: int, port: int, workdir: Path, steps: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(workdir.with_suffix(f".{number}.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID=str(number),
    )
    summary.log_summary = lambda run: None  # estimating the memory is a third of a start
    status = 1
    try:
        config = tiny(total_steps=steps, checkpoint_every=3, report=False)
        distributed.join_processes(False)
        watchdog = Watchdog(workdir, 120, process=number, processes=2)
        with watchdog, distributed.retryable(2, watchdog.late):
            train(config, workdir)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Life:
    """Two processes from their start to their end."""

    def __init__(self, workdir: Path, steps: int) -> None:
        port = free_port()
        self.codes: list[int | None] = [None, None]
        self.pids: list[int] = []
        for number in range(2):
            pid = os.fork()
            if pid == 0:
                process(number, port, workdir, steps)
            self.pids.append(pid)

    def running(self) -> bool:
        for number, pid in enumerate(self.pids):
            if self.codes[number] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                self.codes[number] = os.waitstatus_to_exitcode(status) if ended else None
        return self.codes == [None, None]

    def finish(self) -> None:
        while None in self.codes:
            self.running()
            time.sleep(0.01)

    def kill(self, number: int) -> None:
        if self.codes[number] is None:
            os.kill(self.pids[number], signal.SIGKILL)


def rows_so_far(workdir: Path) -> int:
    try:
        return max((row["step"] for row in rows(workdir)), default=0)
    except (OSError, ValueError):
        return 0  # the last line is being written


def saving(workdir: Path) -> bool:
    """Returns True if the newest step folder has no manifest yet."""
    try:
        found = [(step_of(p.name), p) for p in (workdir / "checkpoints").iterdir()]
    except OSError:
        return False
    steps = [(step, path) for step, path in found if step is not None]
    return bool(steps) and not (max(steps)[1] / MANIFEST).exists()


def wait_for_instant(life: Life, workdir: Path, in_save: bool, rng: random.Random) -> bool:
    """Waits for the instant to kill at; False: the processes ended before it."""
    before, deadline = rows_so_far(workdir), time.monotonic() + PATIENCE
    while rows_so_far(workdir) <= before:
        if not life.running() or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    while in_save and not saving(workdir):
        if not life.running():
            return False
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.05 if in_save else 1.0))
    return life.running()


def kill(life: Life, rng: random.Random) -> str:
    """Kills both processes, or one and then the other; returns their names."""
    first = rng.randrange(3)
    if first == 2:
        life.kill(0)
        life.kill(1)
    else:
        life.kill(first)
        time.sleep(rng.uniform(0, 0.3))
        life.running()
        life.kill(1 - first)
    life.finish()
    return ("process 0", "process 1", "both")[first]


def trajectory(workdir: Path) -> list[dict[str, Any]]:
    """The logged rows without measured times."""
    return [{k: v for k, v in row.items() if k not in CHANGING} for row in rows(workdir)]


def whole_run(workdir: Path, steps: int) -> None:
    life = Life(workdir, steps)
    life.finish()
    if life.codes != [0, 0]:
        raise RuntimeError(f"{workdir} ended with {life.codes}; see its logs.")


def attack(folder: Path, kills: int, steps: int, rng: random.Random) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    whole_run(folder / "whole", steps)
    expected = (trajectory(folder / "whole"), results(folder / "whole")["params_sha256"])
    count: dict[str, Any] = dict.fromkeys(
        ("kills", "in_saves", "half_saves", "runs", "different", "failed"), 0
    )
    while True:
        workdir = folder / f"run{count['runs']}"
        if count["kills"] >= kills:
            whole_run(workdir, steps)
        else:
            life, in_save = Life(workdir, steps), count["kills"] % 3 == 0
            if wait_for_instant(life, workdir, in_save, rng):
                who = kill(life, rng)
                count["kills"] += 1
                count["in_saves"] += in_save
                count["half_saves"] += saving(workdir)
                now = rows_so_far(workdir)
                print(f"kill {count['kills']}: {who} at step {now}", file=sys.stderr, flush=True)
                continue
            life.finish()
            if life.codes != [0, 0]:
                count["failed"] += 1
                raise RuntimeError(f"{workdir} ended with {life.codes}; see its logs. {count}")
        found = (trajectory(workdir), results(workdir)["params_sha256"])
        count["runs"] += 1
        count["different"] += found != expected
        if count["kills"] >= kills:
            return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    count = attack(given.folder, given.kills, given.steps, random.Random(given.seed))
    print(json.dumps(count), flush=True)
    sys.exit(bool(count["different"]))


if __name__ == "__main__":
    main()
