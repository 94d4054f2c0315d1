"""Runs of a sweep, one after the other, each in its own process.

A run is finished when its folder has a results.json, and only then (evaluation.json if the entry is
only evaluated); everything else about it (whether it resumes, from where, whether the folder is its
own) the command that it runs decides itself.
So there is no state of the sweep that an interruption could leave half-written.
"""

import logging
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from big_retrieval.runtime import child
from big_retrieval.runtime.clock import duration
from big_retrieval.runtime.lease import Observer
from big_retrieval.runtime.processes import Signals
from big_retrieval.sweep.screen import Screen, last_lines
from big_retrieval.sweep.spec import SweepRun
from big_retrieval.sweep.table import read_results

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MODULE, COMMANDS = "big_retrieval.main", "big_retrieval"
LOOK = 0.5  # seconds between two looks at a run
PATIENCE = 20.0  # seconds for a killed process to leave a run folder
SHOWN = 8  # lines of the log of a run that failed

ELSEWHERE = "left to the process that is running it"
MISTAKE = 2  # status of `big_retrieval.main` after a user's mistake

Outcome = Literal["finished", "stopped", "failed", "refused", "elsewhere"]


def run_all(runs: Sequence[SweepRun], tables: Callable[[], str]) -> int:
    """Runs what is not finished, in order, and writes the tables after each.

    Args:
      runs: those to run.
      tables: writes the tables, and returns the one to show.

    Returns:
      The exit status: 0 when all runs are finished, 128 + n after signal n, 2 where nothing but
      mistakes of the user is in the way, else 1.

    Raises:
      UserError: a results.json is damaged.
    """
    screen, outcomes = Screen(), dict[str, Outcome]()
    tables()  # what is wrong with them shows before the first run
    with Signals(*SIGNALS) as stop:
        for place, run in enumerate(runs, 1):
            if stop.first is not None:
                break
            head, done = f"[{place}/{len(runs)}] {run.name}", read_results(run)
            if done is not None:
                screen.log(f"{head}  finished already")
            else:
                after = len(_unfinished(runs[place:]))
                outcomes[run.name] = _run(run, head, after, screen, stop)
                tables()
                done = read_results(run)
            screen.finished((done or {}).get("seconds"))
        screen.log("\n" + tables())
    left = _unfinished(runs)
    if not left:
        return 0
    if stop.first is not None:
        screen.log("stopped; to go on, repeat the same command")
        return 128 + stop.first
    told = [f"{outcomes[run.name]}: {run.name}" for run in left]
    told.append(f"{len(left)} of {len(runs)} runs are not finished; repeat the same command")
    screen.log("\n".join(told), logging.WARNING)
    return MISTAKE if {outcomes[run.name] for run in left} == {"refused"} else 1


def _unfinished(runs: Sequence[SweepRun]) -> list[SweepRun]:
    return [run for run in runs if read_results(run) is None]


def _run(run: SweepRun, head: str, after: int, screen: Screen, stop: Signals) -> Outcome:
    """One run, from its start to its end; `after` more are to come."""
    run.folder.mkdir(parents=True, exist_ok=True)
    if _in_use(run, head, screen, stop, PATIENCE):
        screen.log(f"{head}  {ELSEWHERE}")
        return "elsewhere"
    if read_results(run) is not None:  # by the process that was waited for
        return "finished"
    process = RunProcess(run)
    screen.begin(f"{head}  started; its output is in {process.log}")
    while process.process.poll() is None:
        if stop.first is not None:
            process.stop(screen, head, at_once=stop.count > 1)
        screen.progress(head, process.lines(), process.elapsed(), after)
        with suppress(subprocess.TimeoutExpired):
            process.process.wait(LOOK)
    if process.process.returncode == MISTAKE and _in_use(run, head, screen, stop, 0.0):
        screen.log(f"{head}  {ELSEWHERE}")  # it was quicker; the child was refused
        return "elsewhere"
    return process.outcome(screen, head)


def _in_use(run: SweepRun, head: str, screen: Screen, stop: Signals, patience: float) -> bool:
    """Whether another process owns a run folder; one that was just killed does for a moment.

    The run itself takes the lock: here it is only looked at. The lock of another machine has to be
    looked at for some time, until it is renewed or not.
    """
    observer, begin = Observer(run.lock), time.monotonic()
    while (state := observer.look()) in ("alive", "undecided"):
        waited = time.monotonic() - begin >= patience
        if stop.first is not None or (state == "alive" and waited):
            return True
        screen.progress(head, ["waiting for another process to leave its folder"], 0.0, 0)
        time.sleep(LOOK)
    return False


class RunProcess:
    """The process of a run."""

    def __init__(self, run: SweepRun) -> None:
        """Starts it.

        Args:
          run: what it runs.
        """
        self._run = run
        self.log = run.folder / "log.txt"
        self._begin = time.monotonic()
        self._told: Literal["no", "stop", "end"] = "no"
        module = (COMMANDS, "evaluate") if run.entry.evaluate else (MODULE,)
        command = [*module, *run.flags()]
        with self.log.open("ab") as log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"---- {stamp} python -m {shlex.join(command)}\n".encode())
            log.flush()
            self._start = log.tell()
            # In a session of its own, Ctrl-C at the terminal reaches it only through `stop`: the
            # second signal that it gets must be the user's second.
            self.process = subprocess.Popen(
                child.command(*command), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def elapsed(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._begin

    def lines(self) -> list[str]:
        """The last lines that it wrote."""
        return last_lines(self.log, self._start)

    def stop(self, screen: Screen, head: str, *, at_once: bool) -> None:
        """Asks it to save and end, once; or ends it."""
        if at_once and self._told != "end":
            self._told = "end"
            self.process.kill()
        elif self._told == "no":
            self._told = "stop"
            screen.log(f"{head}  saving and stopping; once more ends it without saving")
            self.process.terminate()

    def outcome(self, screen: Screen, head: str) -> Outcome:
        """What became of it, said to the user as well."""
        status, took, lines = self.process.returncode, duration(self.elapsed()), self.lines()
        if read_results(self._run) is not None:
            screen.log(f"{head}  finished in {took}")
            return "finished"
        if status == 0 or self._told != "no":
            screen.log(f"{head}  {lines[-1] if status == 0 and lines else 'stopped'}")
            return "stopped"
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        ends = lines[-1:] if status == MISTAKE else lines[-SHOWN:]
        told = [f"{head}  failed {how} after {took}; {self.log} ends with", *ends]
        screen.log("\n    ".join(told), logging.WARNING)
        return "refused" if status == MISTAKE else "failed"
