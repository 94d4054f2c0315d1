"""Trackers of curves (`config.trackers`), which cannot end or stall the run.

`Guarded` gives each tracker a thread and a bounded queue. A tracker that fails is opened again
later, a tracker that hangs loses rows, and both warn once.
"""

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from big_retrieval.config import Config, schema
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.io.space import reason
from big_retrieval.report.numbers import is_number

ROWS = 1000  # maximum number of rows that wait for a tracker
RETRY = 60.0  # seconds until a tracker that failed is opened again
PATIENCE = 3.0  # seconds that the end of a run waits for a tracker before it logs that

log = logging.getLogger(__name__)
Row = tuple[int, Mapping[str, Any], bool]  # step, values, True for the results


class TrackedRun:
    """Description of a run for one tracker, and the tracker's ids in the run folder.

    Attributes:
      entry: name of the tracker in `config.trackers`.
      name: name of the run folder.
      config: config as nested dictionaries.
      first: first step that this start of the run writes.
    """

    FILE = "trackers.json"
    _lock = threading.Lock()  # trackers of one run share the file

    def __init__(
        self, entry: str, folder: Path, config: Config, first: int, seen: Mapping[str, int]
    ) -> None:
        self.entry, self.folder, self.name = entry, folder, folder.resolve().name
        self.config, self.first = schema.to_plain(config), first
        self._seen = dict(seen)
        # The file belongs to this run only if the run has written rows before.
        self._has_file = bool(seen)

    def known_id(self, project: str) -> str | None:
        """Returns the run's id in a project of a server.

        None if the project lacks the run; all numbers then count as not yet written.
        """
        saved = self._read().get(self.entry) if self._has_file else None
        if saved is not None and saved["place"] == project:
            return saved["id"]
        self._seen = {}
        return None

    def keep_id(self, project: str, run_id: str) -> None:
        """Stores the id for the next start of the run, or the next try after a failure."""
        with self._lock:
            entries = self._read() | {self.entry: {"place": project, "id": run_id}}
            write_bytes(self.folder / self.FILE, to_json(entries))
        self._has_file = True

    def new_numbers(self, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """Returns the numbers that the run has not written for this step or a later one.

        A resumed run repeats the steps since its last checkpoint.
        """
        new_values = {
            name: value
            for name, value in values.items()
            if is_number(value) and step > self._seen.get(name, -1)
        }
        self._seen |= dict.fromkeys(new_values, step)
        return new_values

    def never_written(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Returns the numbers whose names are not in any row."""
        return {k: v for k, v in values.items() if is_number(v) and k not in self._seen}

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / self.FILE).read_text())
        except (OSError, ValueError):
            return {}


class OpenTracker(Protocol):
    """An opened tracker. Every method may raise or hang: `Guarded` calls them in a thread."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes the values of a step by name, and sends all of them before it returns."""
        ...

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the content of results.json; not called if the run is interrupted."""
        ...

    def close(self) -> None: ...


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
        closing: float = 10.0,
    ) -> None:
        """Starts the tracker's thread.

        Args:
          make: opens the tracker; its argument is the tracker's first step.
          rows: maximum number of waiting rows; further rows are dropped.
          retry: seconds between a failure and the next try.
          closing: seconds for the last rows at the end of a run.
        """
        self._name, self._make = name, make
        self._start = self._newest = start
        self._rows, self._retry, self._closing = rows, retry, closing
        self._deadline = float("inf")
        self._queue: queue.Queue[Row | None] = queue.Queue()
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Hands a row to the tracker's thread; drops the row if too many rows wait."""
        self._newest = step
        if self._queue.qsize() < self._rows:
            self._queue.put((step, values, False))
        else:
            text = (
                f"{self._name} is too slow since step {step}; it loses rows, and the run continues"
            )
            self._log_once("slow", text)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Hands the results of the run to the tracker's thread."""
        self._queue.put((self._newest, results, True))

    def end(self) -> None:
        """Ends the queue; the thread then has `closing` seconds."""
        self._queue.put(None)
        self._deadline = time.monotonic() + self._closing

    def wait(self) -> None:
        """Waits for the tracker's last rows."""
        remaining = self._deadline - time.monotonic()
        self._thread.join(max(0.0, min(PATIENCE, remaining)))
        if self._thread.is_alive() and remaining > PATIENCE:
            log.info(f"waiting up to {remaining - PATIENCE:.0f} s for {self._name} ...")
            self._thread.join(remaining - PATIENCE)
        if self._thread.is_alive():  # a daemon thread: the process can end
            text = f"{self._name} did not end within {self._closing:g} s; it may lack the last rows"
            self._log_once("close", text)

    def _run(self) -> None:
        """Writes the rows; a failure closes the tracker, and later rows open the tracker again."""
        tracker: OpenTracker | None = None
        retry_at: float | None = None  # None if the last row was written
        while (row := self._queue.get()) is not None:
            step, values, final = row
            try:
                if retry_at is None or time.monotonic() >= retry_at:
                    if tracker is None:
                        tracker = self._make(self._start if retry_at is None else step)
                    if final:
                        tracker.finish(values)
                    else:
                        tracker.write(step, values)
                    if retry_at is not None:
                        retry_at = None
                        text = f"{self._name} works again from step {step} on"
                        self._log_once("back", text, logging.INFO)
            except Exception as error:  # the run does not depend on trackers
                _close_quietly(tracker)
                tracker, retry_at = None, time.monotonic() + self._retry
                self._log_once(
                    "failed",
                    f"{self._name} failed at step {step} ({reason(error)}); the run continues, and "
                    f"tries again every {self._retry:g} s",
                )
            self._queue.task_done()
        _close_quietly(tracker)

    def _log_once(self, event: str, text: str, level: int = logging.WARNING) -> None:
        if event not in self._logged:
            self._logged.add(event)
            log.log(level, text)


def _close_quietly(tracker: OpenTracker | None) -> None:
    with contextlib.suppress(Exception):
        if tracker is not None:
            tracker.close()


def close_all(trackers: Sequence[Guarded]) -> None:
    """Waits for the last rows of all trackers, in parallel."""
    for tracker in trackers:
        tracker.end()
    for tracker in trackers:
        tracker.wait()


def open_all(
    config: Config, folder: Path, restored: int | None, seen: Mapping[str, int]
) -> list[Guarded]:
    """Opens the trackers of a run, each in its own thread.

    Args:
      restored: step from which the run continues; None for a new run.
      seen: metric -> last step at which earlier starts of the run wrote it.
    """
    guarded = []
    for entry, part in config.trackers.items():
        run = TrackedRun(entry, folder, config, (restored or 0) + 1, seen)

        def make(step: int, part: Any = part, run: TrackedRun = run) -> OpenTracker:
            run.first = step
            return part.open(run)

        guarded.append(Guarded(part.title, make, start=run.first, closing=part.closing))
    return guarded
