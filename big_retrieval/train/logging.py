"""Metrics of a run: files of the run folder, trackers and log lines.

metrics.jsonl gets a line per logged step, flushed at once; the run ends if metrics.jsonl cannot be
written. curves.csv and the trackers get the same numbers; a run continues without them.
results.json has the last value of every metric.
"""

import contextlib
import csv
import io
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.io.durable import free_name, write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.io.space import write_error
from big_retrieval.runtime import locks, screen
from big_retrieval.runtime.extras import Extras
from big_retrieval.train.tracking import close_all, open_all

log = logging.getLogger(__name__)


class Alarms:
    """Logs a warning when it first applies, and again after every `REPEAT` logged steps."""

    REPEAT = 50

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def __call__(self, warnings: Iterable[str]) -> None:
        """Logs warnings on the first process; warnings that differ only in numbers are equal."""
        if jax.process_index() != 0:
            return
        now = {re.sub(r"\d[\d.,]*", "#", text): text for text in warnings}
        self._held = {pattern: self._held.get(pattern, -1) + 1 for pattern in now}
        for pattern, times in self._held.items():
            if times % self.REPEAT == 0:
                log.warning(now[pattern])


class Metrics:
    """The curves of a run. Only the first process writes files."""

    def __init__(
        self,
        workdir: Path,
        *,
        restored_step: int | None,
        config: Config | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens metrics.jsonl, without rows after the restored step, and the trackers.

        Args:
          restored_step: step from which the run continues; None for a new run.
          config: config of the trackers; None for the defaults.
          saved: values of the restored step in its checkpoint.

        Raises:
          UserError: metrics.jsonl cannot be written.
        """
        self._path, self._csv = workdir / "metrics.jsonl", workdir / "curves.csv"
        self._extras = Extras()
        rows, seen = _rows_until(self._path, restored_step)
        self._step = restored_step
        self.last: dict[str, Any] = {}  # values of the newest step
        for row in rows:
            if row["step"] == restored_step:
                self.last.update(row)
        if set(saved or {}) - set(self.last):
            log.warning(
                f"{self._path} lacks values of step {restored_step} that the checkpoint has: rows "
                "were lost, so the curves have a gap"
            )
        self.last.update(saved or {})
        self._active = jax.process_index() == 0
        if not self._active:
            return
        self._rows, self._in_csv = len(rows), 0
        with required(self._path):
            write_bytes(self._path, b"".join(_line(row) for row in rows))
            self._file = self._path.open("ab")
        self._trackers = open_all(config or Config(), workdir, restored_step, seen)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row of numbers and strings.

        Raises:
          UserError: metrics.jsonl cannot be written.
        """
        if step != self._step:
            self._step, self.last = step, {}
        self.last.update(values)
        if not self._active:
            return
        self._check_owner()
        with required(self._path):
            self._file.write(_line({"step": step, **values}))
            self._file.flush()
        self._rows += 1
        for tracker in self._trackers:
            tracker.write(step, dict(values))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Passes the results of a run to its trackers; call it before `close`."""
        for tracker in self._trackers if self._active else ():
            tracker.finish(results)

    def _check_owner(self) -> None:
        """Raises a UserError if another run has the folder, or metrics.jsonl was replaced."""
        locks.check()
        if not self._exists():
            raise UserError(
                f"{self._path} was replaced or removed while the run wrote to it. Repeat the same "
                "command to resume from the newest checkpoint."
            )

    def _exists(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def write_curves(self, *, last: bool = False) -> None:
        """Rewrites curves.csv: a row per step, a column per metric.

        It reads all rows, so it does nothing until a tenth of the rows is new, or `last` is True.
        """
        if not self._active or not (last or self._rows > 1.1 * self._in_csv):
            return
        if not self._exists():  # the rows belong to another run
            return
        with self._extras("curves.csv"):
            write_bytes(self._csv, curves(read_rows(self._path)).encode())
            self._in_csv = self._rows

    def close(self) -> None:
        """Flushes all files to the disk.

        Raises:
          UserError: metrics.jsonl cannot be written.
        """
        if not self._active:
            return
        self.write_curves(last=True)
        close_all(self._trackers)
        with required(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


@contextlib.contextmanager
def required(path: Path) -> Iterator[None]:
    """Returns a context that writes a file; an OSError becomes a UserError with the free space."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error, resumes="the newest checkpoint") from error


def keep_old(workdir: Path) -> None:
    """Renames metrics.jsonl to metrics.jsonl.old (or .old+), on the first process."""
    path = workdir / "metrics.jsonl"
    if jax.process_index() == 0 and path.exists():
        path.rename(free_name(path, "old"))


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a metrics.jsonl without damaged lines."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def _rows_until(path: Path, last: int | None) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Returns the rows that a run from step `last` keeps, and the last step of each metric."""
    kept_rows, newest, seen = [], 0, dict[str, int]()
    for row in read_rows(path):
        seen |= {name: max(row["step"], seen.get(name, 0)) for name in row}
        # Rows of an earlier step after later steps are a final evaluation, which is repeated.
        if last is not None and newest <= row["step"] <= last:
            kept_rows.append(row)
            newest = row["step"]
    return kept_rows, seen


def curves(rows: Iterator[dict[str, Any]]) -> str:
    """Returns rows of metrics as CSV, merged by step."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    columns = ["step", *sorted({key for row in by_step.values() for key in row} - {"step"})]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows(by_step[step] for step in sorted(by_step))
    return out.getvalue()


def write_results(workdir: Path, values: Mapping[str, Any]) -> None:
    """Writes results.json on the first process, or raises a UserError."""
    if jax.process_index() == 0:
        with required(workdir / "results.json"):
            write_bytes(workdir / "results.json", to_json(dict(values)))


def log_table(rows: Mapping[str, Any], stream: Any = None) -> None:
    """Prints names and numbers in two columns, on the first process."""
    if jax.process_index() != 0 or not rows:
        return
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        screen.put(f"  {name:<{width}}  {_number(value)}", stream)


def metric_lines(rows: Mapping[str, Any]) -> None:
    """Prints a line per group of names, such as retrieval/test, on the first process."""
    groups: dict[str, list[str]] = {}
    for name, value in rows.items() if jax.process_index() == 0 else ():
        group, _, metric = name.rpartition("/")
        groups.setdefault(group, []).append(f"{metric} {_number(value)}")
    for group, numbers in groups.items():
        screen.put(f"  {group}: {', '.join(numbers)}")


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
