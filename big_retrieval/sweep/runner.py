"""Runs of a sweep, one after the other, each in its own process.

A run is finished when its folder has a results.json (evaluation.json if the entry is only
evaluated). The command of the run decides everything else, such as the step where it resumes. A
sweep therefore has no state that an interruption could leave half-written.
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
from big_retrieval.runtime.progress import progress_bar
from big_retrieval.sweep.spec import SweepRun
from big_retrieval.sweep.table import read_results

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MODULE, COMMANDS = "big_retrieval.main", "big_retrieval"
LOOK = 0.5  # seconds between two checks of a run
PATIENCE = 20.0  # seconds for a killed process to leave a run folder
QUIET = 60.0  # seconds between two lines of progress in a log
SHOWN = 8  # printed log lines of a failed run
TAIL = 16_384  # bytes read at the end of a log
ELSEWHERE = "left to the process that is running it"
MISTAKE = 2  # exit status of `big_retrieval.main` after a UserError

Outcome = Literal["finished", "stopped", "failed", "refused", "elsewhere"]
log = logging.getLogger(__name__)


class _Screen:
    """Messages of a sweep, and a bar of its runs with the last line of the current run's log."""

    def __init__(self, runs: int) -> None:
        shown = log.isEnabledFor(logging.INFO)
        self._bar = progress_bar("runs", runs, shown=shown, log_interval=QUIET)

    def message(self, text: str, level: int = logging.INFO) -> None:
        with self._bar.external_write_mode():  # on a terminal, the bar moves below the message
            log.log(level, text)

    def progress(self, text: str, finished_runs: int = 0) -> None:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(finished_runs)

    def close(self) -> None:
        self._bar.close()


def run_all(runs: Sequence[SweepRun], tables: Callable[[], str]) -> int:
    """Runs all unfinished runs in order; calls `tables` at the start and after each run.

    Returns:
      The exit status: 0 if all runs are finished, 128 + n after signal n, 2 if all unfinished runs
      were refused, else 1.
    """
    outcomes = dict[str, Outcome]()
    tables()  # damaged results raise an error before the first run
    screen = _Screen(len(_unfinished(runs)))
    with Signals(*SIGNALS) as stop:
        for position, run in enumerate(runs, 1):
            if stop.first is not None:
                break
            head = f"[{position}/{len(runs)}] {run.name}"
            if read_results(run) is not None:
                screen.message(f"{head}  finished already")
                continue
            outcomes[run.name] = _run(run, head, screen, stop)
            screen.progress("", finished_runs=1)
            tables()
        screen.close()
        log.info("\n" + tables())
    remaining = _unfinished(runs)
    if not remaining:
        return 0
    if stop.first is not None:
        log.info("stopped; to continue, repeat the same command")
        return 128 + stop.first
    lines = [f"{outcomes[run.name]}: {run.name}" for run in remaining]
    lines.append(f"{len(remaining)} of {len(runs)} runs are not finished; repeat the same command")
    log.warning("\n".join(lines))
    return MISTAKE if {outcomes[run.name] for run in remaining} == {"refused"} else 1


def _unfinished(runs: Sequence[SweepRun]) -> list[SweepRun]:
    return [run for run in runs if read_results(run) is None]


def _run(run: SweepRun, head: str, screen: _Screen, stop: Signals) -> Outcome:
    run.folder.mkdir(parents=True, exist_ok=True)
    if _in_use(run, head, screen, stop, PATIENCE):
        screen.message(f"{head}  {ELSEWHERE}")
        return "elsewhere"
    if read_results(run) is not None:  # by the other process
        return "finished"
    process = _RunProcess(run)
    screen.message(f"{head}  started; its output is in {process.log_file}")
    while process.process.poll() is None:
        if stop.first is not None:
            process.stop(screen, head, at_once=stop.count > 1)
        screen.progress(f"{head}  {(process.last_lines() or ['starting'])[-1]}")
        with suppress(subprocess.TimeoutExpired):
            process.process.wait(LOOK)
    if process.process.returncode == MISTAKE and _in_use(run, head, screen, stop, 0.0):
        screen.message(f"{head}  {ELSEWHERE}")  # another process took the lock first
        return "elsewhere"
    return process.outcome(screen, head)


def _in_use(run: SweepRun, head: str, screen: _Screen, stop: Signals, patience: float) -> bool:
    """Returns True if another process owns a run folder for longer than `patience` seconds.

    A killed process owns the folder for a moment. The run itself takes the lock.
    """
    observer, begin = Observer(run.lock), time.monotonic()
    while (state := observer.look()) in ("alive", "undecided"):
        waited = time.monotonic() - begin >= patience
        if stop.first is not None or (state == "alive" and waited):
            return True
        screen.progress(f"{head}  waiting for another process to leave its folder")
        time.sleep(LOOK)
    return False


class _RunProcess:
    """The process of a run."""

    def __init__(self, run: SweepRun) -> None:
        self._run = run
        self.log_file = run.folder / "log.txt"
        self._begin = time.monotonic()
        self._signals = 0  # signals sent to the process
        module = (COMMANDS, "evaluate") if run.entry.evaluate else (MODULE,)
        command = [*module, *run.flags()]
        with self.log_file.open("ab") as output:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            output.write(f"---- {stamp} python -m {shlex.join(command)}\n".encode())
            output.flush()
            self._start = output.tell()
            # Its own session: Ctrl-C must reach the process once, through `stop`, because a second
            # signal ends it without saving.
            self.process = subprocess.Popen(
                child.command(*command), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def last_lines(self) -> list[str]:
        """Returns the last lines of this process in the log, without empty lines."""
        with self.log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self._start, size - TAIL))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def stop(self, screen: _Screen, head: str, *, at_once: bool) -> None:
        """Ends the process, which saves first unless `at_once`."""
        if at_once and self._signals < 2:
            self._signals = 2
            self.process.kill()
        elif not self._signals:
            self._signals = 1
            screen.message(f"{head}  saving and stopping; a second signal ends it without saving")
            self.process.terminate()

    def outcome(self, screen: _Screen, head: str) -> Outcome:
        """Prints and returns the outcome of the process."""
        status, lines = self.process.returncode, self.last_lines()
        took = duration(time.monotonic() - self._begin)
        if read_results(self._run) is not None:
            screen.message(f"{head}  finished in {took}")
            return "finished"
        if status == 0 or self._signals:
            screen.message(f"{head}  {lines[-1] if status == 0 and lines else 'stopped'}")
            return "stopped"
        reason = f"by signal {-status}" if status < 0 else f"with status {status}"
        ends = lines[-1:] if status == MISTAKE else lines[-SHOWN:]
        text = [f"{head}  failed {reason} after {took}; {self.log_file} ends with", *ends]
        screen.message("\n    ".join(text), logging.WARNING)
        return "refused" if status == MISTAKE else "failed"
