"""Where the curves of a run go besides metrics.jsonl. No tracker may end or stall the run.

`config.trackers` says which; those of other libraries have files of their own.

A tracker writes to what the run can do without: a disk that may be full for a moment, a file system
that may hang, a server. `Guarded` puts a tracker behind a thread and a bounded queue: a tracker
that fails is opened again later, a tracker that hangs loses rows, and both are said once.
"""

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from big_retrieval.config import Config
from big_retrieval.config.registry import register
from big_retrieval.config.trackers import Tracker
from big_retrieval.io.space import reason
from big_retrieval.report.numbers import is_number
from big_retrieval.train.tracked_run import TrackedRun

ROWS = 1000  # that wait for a tracker at most
RETRY = 60.0  # seconds after which a tracker that failed is opened again
CLOSING = 10.0  # seconds that a tracker has at the end of a run
PATIENCE = 3.0  # seconds after which the end of a run says what it waits for

log = logging.getLogger(__name__)
Row = tuple[int, Mapping[str, Any], bool]  # step, values, whether they are the results


class OpenTracker(Protocol):
    """What `Guarded` guards. Every method may raise or hang."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes the values of a step by name; all of them are on their way when it returns."""
        ...

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes what results.json holds; not called where the run is interrupted."""
        ...

    def close(self) -> None:
        """Frees what the tracker holds."""
        ...


class Guarded:
    """A tracker that neither raises nor blocks."""

    def __init__(
        self,
        name: str,
        make: Callable[[int], OpenTracker],
        *,
        start: int,
        rows: int = ROWS,
        retry: float = RETRY,
        closing: float | None = None,
    ) -> None:
        """Starts the tracker's thread.

        Args:
          name: of the tracker, for messages.
          make: opens the tracker, given the first step that it will get.
          start: the first step.
          rows: that wait for the tracker at most; what comes on top is dropped.
          retry: seconds between a failure and the next try.
          closing: seconds that the tracker has at the end of a run; None: `CLOSING`.
        """
        self._closing = CLOSING if closing is None else closing
        self._deadline: float | None = None
        self._newest = start
        self._name, self._make = name, make
        self._start, self._rows, self._retry = start, rows, retry
        self._queue: queue.Queue[Row | None] = queue.Queue()
        self._tracker: OpenTracker | None = None
        self._again: float | None = None  # when to try again after a failure
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Hands a row to the tracker's thread, or drops the row where too many wait already."""
        self._newest = step
        if self._queue.qsize() < self._rows:
            self._queue.put((step, values, False))
        else:
            self._once(
                "slow",
                f"{self._name} does not keep up since step {step}; rows are left out of "
                "it, and the run goes on",
            )

    def finish(self, results: Mapping[str, Any]) -> None:
        """Hands the results of the run to the tracker's thread."""
        self._queue.put((self._newest, results, True))

    def settle(self) -> None:
        """Waits until the tracker has been given every row so far; for tests."""
        self._queue.join()

    def end(self) -> None:
        """Says that no more rows come; `close` waits."""
        self._queue.put(None)
        self._deadline = time.monotonic() + self._closing

    def close(self) -> None:
        """Gives the tracker some seconds from `end` on to write the rest."""
        if self._deadline is None:
            self.end()
        assert self._deadline is not None
        left = self._deadline - time.monotonic()
        self._thread.join(max(0.0, min(PATIENCE, left)))
        if self._thread.is_alive() and left > PATIENCE:
            log.info(f"{self._name} gets up to {left - PATIENCE:.0f} s for its last rows ...")
            self._thread.join(left - PATIENCE)
        if self._thread.is_alive():  # a daemon: the thread does not keep the process from ending
            self._once(
                "close",
                f"{self._name} did not end within {self._closing:g} s; its last rows may be "
                "missing",
            )

    def _run(self) -> None:
        while (row := self._queue.get()) is not None:
            self._pass_on(*row)
            self._queue.task_done()
        self._drop()

    def _pass_on(self, step: int, values: Mapping[str, Any], final: bool) -> None:
        """Writes a row; a failure closes the tracker, and later rows open the tracker again."""
        if self._again is not None and time.monotonic() < self._again:
            return
        try:
            if self._tracker is None:
                self._tracker = self._make(self._start if self._again is None else step)
            if final:
                self._tracker.finish(values)
            else:
                self._tracker.write(step, values)
        except Exception as problem:  # whatever a tracker does, the run does not depend on it
            self._drop()
            self._again = time.monotonic() + self._retry
            self._once(
                "failed",
                f"{self._name} failed at step {step} ({reason(problem)}); the run goes on "
                f"without it and tries again every {self._retry:g} s",
            )
            return
        if self._again is not None:
            self._again = None
            self._once("back", f"{self._name} is written again from step {step} on", logging.INFO)

    def _drop(self) -> None:
        tracker, self._tracker = self._tracker, None
        with contextlib.suppress(Exception):
            if tracker is not None:
                tracker.close()

    def _once(self, kind: str, text: str, level: int = logging.WARNING) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.log(level, text)


def open_all(
    config: Config, folder: Path, restored: int | None, seen: Mapping[str, int]
) -> list[Guarded]:
    """The trackers of a run, each in a thread of its own.

    Args:
      config: of the run.
      folder: of the run.
      restored: the step that the run goes on from; None: it starts anew.
      seen: metric -> the last step at which earlier starts of the run wrote it.
    """
    found = []
    for entry, part in config.trackers.items():
        run = TrackedRun(entry, folder, config, (restored or 0) + 1, seen)

        def make(step: int, part: Any = part, run: TrackedRun = run) -> OpenTracker:
            run.first = step
            return part.open(run)

        found.append(Guarded(part.title, make, start=run.first, closing=part.closing))
    return found


class EventFiles:
    """Scalars in a file for TensorBoard, written in the thread of the caller.

    `tensorboardX.SummaryWriter` has a thread of its own behind a queue of ten events. An error ends
    that thread with a traceback, and the eleventh event then waits for ever.
    """

    _numbers = itertools.count()  # no second writer of a process may overwrite the first one's file

    def __init__(self, folder: Path, first: int) -> None:
        """Opens a new file.

        Args:
          folder: where TensorBoard looks for the files of the run.
          first: the first step; what older files have of this step and later ones is void.
        """
        # Imported here, where a failure is a warning: tensorboardX imports anything of the name
        # torch, such as a folder beside the config file, and fails if PyTorch's names are missing.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        self._protocol: Any = event_pb2  # its classes are made when it is imported
        self._scalar = scalar
        folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{next(self._numbers)}"
        self._writer = EventsWriter(str(folder / "events"), suffix)
        start = self._protocol.SessionLog(status=self._protocol.SessionLog.START)
        self._event(first, session_log=start)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes the numbers among the values."""
        for name, value in values.items():
            if is_number(value):
                self._event(step, summary=self._scalar(name, value))
        self._writer.flush()

    def finish(self, results: Mapping[str, Any]) -> None:
        """Nothing: a file for TensorBoard has no place for numbers of no step."""

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _event(self, step: int, **content: Any) -> None:
        event = self._protocol.Event(step=step, wall_time=time.time(), **content)
        self._writer.write_event(event)


@register("tracker")
@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Files for TensorBoard, in the folder tensorboard of the run folder."""

    title: ClassVar[str] = "TensorBoard"
    type: Literal["tensorboard"] = "tensorboard"

    def open(self, run: TrackedRun) -> OpenTracker:
        return EventFiles(run.folder / "tensorboard", run.first)
