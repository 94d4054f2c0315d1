"""Ends a run without progress, and names the process that delays it.

A collective operation waits for all processes. If one process hangs (in a file system, a data
worker, a device), all wait forever. Each process therefore exits if its count of finished work
(`runtime.activity`) does not grow. Heartbeat files in the shared run folder show which process is
late. The key-value store of jax.distributed is no alternative: it has no public interface and ends
with process 0.
"""

import contextlib
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import big_retrieval
from big_retrieval.io.space import free_space, is_full
from big_retrieval.runtime import activity, distributed

START = 1800.0  # minimum limit in seconds for a compilation, and until the first step is finished
COMPILER = os.path.join("jax", "_src", "compiler.py")  # on the stack while jax compiles
TICK = 1.0  # seconds between two readings of the count
# Seconds without progress before a warning. About 100 s after another process stopped answering,
# jax.distributed ends this one with a C++ stack and no message.
WARNING = 60.0
READING = 10.0  # seconds to wait for the file system with the heartbeats of other processes
STUCK = 60.0  # minimum seconds for which one operation may block the interpreter
GRACE = 5.0  # seconds that the first process waits for the others to exit
NAMED = 8  # maximum number of late processes in a message
PACKAGE = str(Path(big_retrieval.__file__).parent) + os.sep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Heartbeat:
    """State of one process at one point in time."""

    process: int
    beats: int  # `Progress.beats`
    step: int  # `Progress.step`
    place: str  # file:line and function of its main thread
    # Seconds since 1970; if read from a file, the file's time, as clocks of hosts may differ.
    time: float


class Watchdog:
    """A context that ends this process after `hang_after` seconds without progress.

    Time in which the process was suspended (SIGSTOP, a suspended machine) does not count.
    Compilation and the time before the first step have the limit `START`.
    """

    def __init__(
        self,
        workdir: Path,
        hang_after: float,
        *,
        process: int = 0,
        processes: int = 1,
        end: Callable[[str], Any] = distributed.end,
    ) -> None:
        """Starts no thread yet. `end` must log its message and end the process."""
        self._folder = workdir / "heartbeats"
        self._hang_after = hang_after  # seconds; 0 disables
        self._process, self._processes = process, processes
        self._end = end
        self._silent = 0.0  # seconds since the last beat
        self._closed = threading.Event()
        self._watched = threading.get_ident()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Watchdog":
        activity.reset()
        # Two threads: a hanging file system stops only the thread that writes.
        jobs = [self._watch] if self._hang_after else []
        jobs += [self._write] if self._processes > 1 else []
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=TICK)
        if self._hang_after:
            faulthandler.cancel_dump_traceback_later()
        if self._processes > 1 and exc[0] is None:
            with contextlib.suppress(OSError):
                _file(self._folder, self._process).unlink(missing_ok=True)
                self._folder.rmdir()  # succeeds in the last process

    def late(self) -> str:
        """Returns the processes that delay the run, as part of a message."""
        if self._processes == 1:
            return f"in {self._now().place}"
        beats = _within(READING, lambda: read(self._folder)) or {}
        beats = {k: beat for k, beat in beats.items() if k < self._processes}
        # The current time, by the clock that dates the files of the other processes.
        now = max((beat.time for beat in beats.values()), default=time.time())
        beats[self._process] = replace(self._now(), time=now)
        # A shared file system may show a file late, but hardly by half of the waiting time.
        fresh = max(3 * self._period(), self._silent / 2)
        return late_processes(beats, self._processes, fresh)

    def _now(self) -> Heartbeat:
        place = _place(self._watched) + _reading()
        beats, step = activity.PROGRESS.beats, activity.PROGRESS.step
        return Heartbeat(self._process, beats, step, place, time.time())

    def _period(self) -> float:
        """Returns the seconds between heartbeats: 1 to 5, as many processes share a file system."""
        return min(5.0, max(TICK, self._hang_after / 60)) if self._hang_after else 5.0

    def _watch(self) -> None:
        """Reads the count of beats; ends the process if it has not grown for too long."""
        tick = min(TICK, self._hang_after / 10)
        last, before, longest, warned, starting = 0, time.monotonic(), 0.0, False, 0.0
        patience = max(START, 2 * self._hang_after)
        while not self._closed.wait(tick):
            now = time.monotonic()
            # A longer gap means that this process was suspended; it does not count.
            passed, before = min(now - before, 10 * tick), now
            if activity.PROGRESS.beats != last:
                longest = max(longest, self._silent) if last else 0.0
                self._silent, starting, warned, last = 0.0, 0.0, False, activity.PROGRESS.beats
            elif not last or _compiling(self._watched):
                starting += passed
            else:
                self._silent += passed
            # Code that blocks the interpreter stops this thread, but not this timer.
            limit = self._hang_after if last else patience
            faulthandler.dump_traceback_later(2 * limit + STUCK, exit=True, file=_stderr())
            if self._silent > max(min(WARNING, self._hang_after / 2), 3 * longest) and not warned:
                warned = True
                log.warning(self._state(self._silent))
            if self._silent > self._hang_after or starting > patience:
                self._hang(self._silent + starting)
                return

    def _hang(self, seconds: float) -> None:
        faulthandler.dump_traceback(_stderr(), all_threads=True)
        state = self._state(seconds)
        if self._processes > 1 and self._process == 0:
            time.sleep(GRACE)  # jax aborts the others when the first process exits
        self._end(f"{state}; the stacks are above, a longer config.hang_after waits longer")

    def _state(self, seconds: float) -> str:
        progress, folder = activity.PROGRESS, self._folder.parent
        last = f"since step {progress.step}" if progress.beats else "and no step yet"
        text = f"process {self._process}: no progress for {seconds:.0f} s {last}; {self.late()}"
        if _within(READING, lambda: is_full(folder)):
            text += f"; the disk of {folder} is full ({free_space(folder)})"
        return text

    def _write(self) -> None:
        target = _file(self._folder, self._process)
        while not self._closed.wait(self._period() if activity.PROGRESS.beats else TICK):
            if not activity.PROGRESS.beats:
                continue  # this run may not own the folder yet
            with contextlib.suppress(OSError):
                target.parent.mkdir(exist_ok=True)
                partial = target.with_suffix(".partial")
                partial.write_text(json.dumps(asdict(self._now())))
                partial.replace(target)


def read(folder: Path) -> dict[int, Heartbeat]:
    """Returns the heartbeats in a folder by process, without unreadable files."""
    beats = {}
    for path in folder.glob("process_*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            beat = Heartbeat(**json.loads(path.read_text()))
            beats[beat.process] = replace(beat, time=path.stat().st_mtime)
    return beats


def late_processes(beats: Mapping[int, Heartbeat], processes: int, fresh: float) -> str:
    """Returns the processes that the others wait for, as part of a message.

    Args:
      beats: last heartbeats by process; the latest one sets the current time.
      fresh: maximum age in seconds of a heartbeat of a live process.
    """
    now, max_beats = max(b.time for b in beats.values()), max(b.beats for b in beats.values())
    late = []
    for process in range(processes):
        beat = beats.get(process)
        if beat is None and max_beats == 0:
            continue  # no process writes heartbeats before the first step
        if beat is None:
            late.append(f"process {process} (no sign of life since its start)")
        elif now - beat.time > fresh:
            late.append(
                f"process {process} (no sign of life for {now - beat.time:.0f} s, last seen at "
                f"step {beat.step} in {beat.place})"
            )
        elif beat.beats < max_beats:
            late.append(f"process {process} (at step {beat.step} in {beat.place})")
    if not late:
        places = [f"process {k} in {beat.place}" for k, beat in sorted(beats.items())]
        return f"no process is behind the others ({_some(places)})"
    return f"late: {_some(late)}"


def _some(names: list[str]) -> str:
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join(names[:NAMED] + more)


def _file(folder: Path, process: int) -> Path:
    return folder / f"process_{process}.json"


def _innermost(thread: int, is_match: Callable[[str], bool]) -> FrameType | None:
    frame = sys._current_frames().get(thread)
    while frame is not None and not is_match(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _place(thread: int) -> str:
    """Returns the innermost line of this package on a thread's stack."""
    frame = _innermost(thread, lambda file: file.startswith(PACKAGE))
    if frame is None:
        return "code outside of big_retrieval"
    code = frame.f_code
    return f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {code.co_name}"


def _reading() -> str:
    """Returns the record or file that has been read for the longest, as part of a message."""
    notes = [note for note in activity.current() if note.seconds >= TICK]
    return f", reading {notes[0]}" if notes else ""


def _compiling(thread: int) -> bool:
    return _innermost(thread, lambda file: file.endswith(COMPILER)) is not None


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """Returns the function's result; None after `seconds`."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return out[0] if out else None


def _stderr() -> Any:
    return sys.__stderr__ or sys.stderr
