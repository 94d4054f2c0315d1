"""Trackers of curves fail without ending or stalling the run, and warn once."""

import errno
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import event_file_writer

from big_retrieval.runtime.extras import Extras
from big_retrieval.train import trackers
from big_retrieval.train.logging import Metrics, read_rows
from big_retrieval.train.tracking import Guarded, close_all


class Fragile:
    """A tracker in memory whose disk is full while `full` is set, and that hangs on demand."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.starts: list[int] = []
        self.full = False
        self.answers = threading.Event()
        self.answers.set()

    def open(self, step: int) -> "Fragile":
        self.starts.append(step)
        return self

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.answers.wait()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.rows.append(step)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def written(tracker: Guarded, *steps: int) -> None:
    for step in steps:
        tracker.write(step, {"loss": 1.0})
        tracker._queue.join()


def test_failed_tracker_is_opened_again_with_two_log_lines(said: list[str]) -> None:
    board = Fragile()
    tracker = Guarded("TensorBoard", board.open, start=1, retry=0.0)
    written(tracker, 1, 2)
    board.full = True
    written(tracker, 3, 4)
    board.full = False
    written(tracker, 5, 6)
    board.full = True
    written(tracker, 7)
    board.full = False
    written(tracker, 8)
    close_all([tracker])
    assert board.rows == [1, 2, 5, 6, 8]
    assert board.starts == [1, 4, 5, 8]
    assert said == [
        "warning: TensorBoard failed at step 3 (No space left on device); the run continues, and "
        "tries again every 0 s",
        "TensorBoard works again from step 5 on",
    ]


def test_rows_before_the_next_try_are_dropped() -> None:
    board = Fragile()
    tracker = Guarded("TensorBoard", board.open, start=1, retry=3600.0)
    board.full = True
    written(tracker, 1)
    board.full = False
    written(tracker, 2, 3)
    close_all([tracker])
    assert (board.rows, board.starts) == ([], [1])


def test_hanging_tracker_blocks_neither_the_loop_nor_the_end(said: list[str]) -> None:
    board = Fragile()
    board.answers.clear()
    tracker = Guarded("TensorBoard", board.open, start=1, rows=5, closing=0.05)
    for step in range(100):
        tracker.write(step, {"loss": 1.0})
    close_all([tracker])
    assert len(said) == 2
    assert said[0].startswith("warning: TensorBoard is too slow since step ")
    assert said[1].startswith("warning: TensorBoard did not end within ")
    board.answers.set()


def test_folder_named_torch_next_to_the_config_gives_a_warning(tmp_path: Path) -> None:
    """tensorboardX imports the folder as a package without names, and fails."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    program = (
        "import logging, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from big_retrieval.train.trackers import _EventFiles;"
        "from big_retrieval.train.tracking import Guarded, close_all;"
        "logging.basicConfig();"
        "make = lambda step: _EventFiles(Path(sys.argv[1]), step);"
        "board = Guarded('TensorBoard', make, start=1);"
        "board.write(1, {'loss': 1.0}); close_all([board])"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TensorBoard failed at step 1 (" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk_under_tensorboard_does_not_change_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real board: its writer fails as on a full disk, then more rows follow than any queue."""

    def full(self: Any, event: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    metrics = Metrics(tmp_path, restored_step=None)
    metrics.write(1, {"loss": 1.0})
    monkeypatch.setattr(event_file_writer.EventsWriter, "write_event", full)
    done = threading.Event()

    def log() -> None:
        for step in range(2, 60):
            metrics.write(step, {"loss": 1.0, "accuracy": 0.5})
        metrics.close()
        done.set()

    threading.Thread(target=log, daemon=True).start()
    assert done.wait(60)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 60))
    assert capsys.readouterr().err.count("warning: TensorBoard") == 1


def test_tensorboard_file_contains_all_numbers_and_the_first_step(tmp_path: Path) -> None:
    from tensorboardX.proto import event_pb2 as proto
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  # the format read below

    event_pb2: Any = proto  # its classes are made when it is imported
    board = trackers._EventFiles(tmp_path, 7)
    board.write(7, {"loss": 0.5, "records": "ab12", "step": 7})
    board.close()
    [path] = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    assert events[0].file_version == "brain.Event:2"
    assert (events[1].session_log.status, events[1].step) == (event_pb2.SessionLog.START, 7)
    values = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert values == [(7, "loss", 0.5), (7, "step", 7.0)]


def test_extras_warn_once_per_name(said: list[str]) -> None:
    extras = Extras()
    for _ in range(3):
        with extras("curves.csv"):
            raise OSError(errno.ENOSPC, "No space left on device")
    with extras("the report"):
        raise ValueError("a bug")
    with extras("rankings"):
        pass
    assert said == [
        "warning: curves.csv is not written (No space left on device); the run continues",
        "warning: the report is not written (ValueError: a bug); the run continues",
    ]
