"""The watchdog fires without progress, and only then; it names the late process."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.runtime import activity, watchdog
from big_retrieval.runtime.activity import reading
from big_retrieval.runtime.watchdog import Heartbeat, Watchdog, late_processes, read
from big_retrieval.train.loop import train
from tests.helpers import ROOT, tiny


class Fired(list[str]):
    """Messages of the watchdog; called instead of ending the process."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self.event.set()


@pytest.fixture(autouse=True)
def _own_count() -> Iterator[None]:
    yield
    activity.reset()


def test_watchdog_fires_without_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fired = Fired()
    with Watchdog(tmp_path, 0.3, end=fired):
        activity.beat(7)
        assert watchdog._within(60, fired.event.wait)
    assert len(fired) == 1
    assert fired[0].startswith(
        "process 0: no progress for 0 s since step 7; in runtime/watchdog.py:"
    )
    assert "config.hang_after" in fired[0]
    shown = capfd.readouterr().err
    assert shown.count("warning: process 0: no progress for 0 s since step 7") == 1
    assert "_within" in shown  # the stacks


def test_watchdog_does_not_fire_with_progress(tmp_path: Path) -> None:
    fired = Fired()
    with Watchdog(tmp_path, 1.0, end=fired):
        for step in range(50):
            activity.beat(step)
            time.sleep(0.05)
    assert fired == []


def test_watchdog_waits_longer_for_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = Fired()
    with Watchdog(tmp_path, 0.1, end=fired):
        time.sleep(0.6)
        assert fired == []
        activity.beat(1)
        assert fired.event.wait(60)
    monkeypatch.setattr(watchdog, "START", 0.3)
    with Watchdog(tmp_path, 0.1, end=(again := Fired())):
        assert again.event.wait(60)
    assert "and no step yet; in " in again[0]


def test_watchdog_waits_for_compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    compiled = []

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(1.0)
        compiled.append(options)
        return jax.numpy.zeros(3)

    assert compiler.__file__.endswith(watchdog.COMPILER)
    code = slow.__code__.replace(co_filename=compiler.__file__)  # as on jax's own stack
    slow = FunctionType(code, slow.__globals__, closure=slow.__closure__)
    fired = Fired()
    with Watchdog(tmp_path, 0.2, end=fired):
        activity.beat(1)
        slow()
        activity.beat(2)
        assert compiled
        assert fired == []
        assert fired.event.wait(60)
    monkeypatch.setattr(watchdog, "START", 0.4)
    with Watchdog(tmp_path, 0.2, end=(again := Fired())):
        activity.beat(1)
        slow()
    assert len(again) == 1


def test_suspended_time_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """The clock of a process that is stopped for an hour at its third look."""

        looks = 0
        time = staticmethod(time.time)

        def monotonic(self) -> float:
            self.looks += 1
            return time.monotonic() + (3600 if self.looks > 3 else 0)

    monkeypatch.setattr(watchdog, "time", clock := Clock())
    fired = Fired()
    with Watchdog(tmp_path, 100.0, end=fired) as dog:
        dog._closed = Impatient()  # type: ignore[assignment]
        activity.beat(1)
        while clock.looks < 8:
            time.sleep(0.01)
    assert fired == []


class Impatient(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.02)


CHILD = """
import re, sys, time
from pathlib import Path
from big_retrieval.runtime import activity, messages
from big_retrieval.runtime.activity import reading
from big_retrieval.runtime import watchdog

messages.show()
watchdog.STUCK = 0.5
with watchdog.Watchdog(Path(sys.argv[1]), 0.5):
    activity.beat(3)
    if sys.argv[2] == "sleep":
        time.sleep(600)
    time.sleep(0.3)
    re.match(r"(a+)+$", "a" * 60 + "b")
"""


@pytest.mark.parametrize(("how", "status"), [("sleep", 75), ("interpreter", 1)])
def test_process_ends(tmp_path: Path, how: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), how],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert 'File "<string>", line ' in done.stderr
    if how == "sleep":
        assert done.stderr.splitlines()[-1].startswith("error: process 0: no progress for")
    else:
        assert "Timeout" in done.stderr


# ---- Several processes


def heartbeat(process: int, beats: int, age: float = 0.0, place: str = "a.py:1 f") -> Heartbeat:
    return Heartbeat(process, beats, beats // 2, place, 1000.0 - age)


@pytest.mark.parametrize(
    ("beats", "words"),
    [
        (
            [heartbeat(0, 9), heartbeat(1, 8, place="data.py:5 g")],
            "late: process 1 (at step 4 in data.py:5 g)",
        ),
        ([heartbeat(0, 8), heartbeat(1, 9)], "late: process 0 (at step 4"),
        (
            [heartbeat(0, 9), heartbeat(1, 9, age=40)],
            "late: process 1 (no sign of life for 40 s, last seen at",
        ),
        ([heartbeat(0, 9)], "late: process 1 (no sign of life since its start)"),
        ([heartbeat(0, 0)], "no process is behind the others (process 0 in a.py:1 f)"),
        (
            [heartbeat(0, 9), heartbeat(1, 9)],
            "no process is behind the others (process 0 in a.py:1 f, process 1",
        ),
    ],
)
def test_late_processes(beats: list[Heartbeat], words: str) -> None:
    assert late_processes({beat.process: beat for beat in beats}, 2, fresh=30).startswith(words)


def test_heartbeats_are_written_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.02)
    run = tmp_path / "run"
    run.mkdir()
    with Watchdog(run, 900.0, process=1, processes=2) as dog:
        time.sleep(0.3)
        assert list(run.iterdir()) == []  # the folder may belong to another run
        activity.beat(5)
        until(lambda: 1 in read(run / "heartbeats"))
        assert read(run / "heartbeats")[1].step == 5
        assert dog.late() == "late: process 0 (no sign of life since its start)"
        (run / "heartbeats" / "process_0.json").write_text(json.dumps(vars(heartbeat(0, 1))))
        os.utime(run / "heartbeats" / "process_0.json", (1000, 1000))
        (run / "heartbeats" / "process_7.json").write_text("{")
        (run / "heartbeats" / "process_8.json").write_text('{"a": 1}')
        assert dog.late().startswith("late: process 0 (no sign of life for ")
    assert sorted(path.name[:9] for path in (run / "heartbeats").iterdir()) == [
        "process_0", "process_7", "process_8",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
def test_wrong_clock_is_not_late(tmp_path: Path, wrong: float) -> None:
    folder = tmp_path / "heartbeats"
    folder.mkdir()
    other = Heartbeat(1, 2, 2, "a.py:1 f", time.time() + wrong)
    (folder / "process_1.json").write_text(json.dumps(vars(other)))
    dog = Watchdog(tmp_path, 900.0, process=0, processes=2)
    activity.reset()
    for step in (1, 2):
        activity.beat(step)
    assert dog.late().startswith("no process is behind the others (process 0 in ")
    activity.beat(3)
    assert dog.late() == "late: process 1 (at step 2 in a.py:1 f)"


def test_message_names_record_and_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.0)
    dog = Watchdog(tmp_path, 900.0)
    assert "reading" not in dog._state(60)
    with reading("pairs.jsonl, line 7"):
        text = dog._state(60)
    assert re.fullmatch(
        r"process 0: no progress for 60 s and no step yet; in runtime/watchdog\.py:\d+ \w+, "
        r"reading pairs\.jsonl, line 7 \(for 0 s\)",
        text,
    ), text
    monkeypatch.setattr(watchdog, "is_full", lambda path: path == tmp_path)
    assert re.search(rf"; the disk of {tmp_path} is full \(.* are free\)$", dog._state(60))


def test_heartbeat_stays_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.02)

    def fail() -> None:
        with Watchdog(tmp_path, 900.0, processes=2):
            activity.beat(1)
            until(lambda: 0 in read(tmp_path / "heartbeats"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert 0 in read(tmp_path / "heartbeats")


@pytest.mark.slow
def test_hanging_folder_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any) -> Any:
        threading.Event().wait(600)

    monkeypatch.setattr(watchdog, "read", hang)
    monkeypatch.setattr(watchdog, "READING", 0.1)
    monkeypatch.setattr(Path, "replace", hang)
    monkeypatch.setattr(watchdog, "TICK", 0.02)
    fired = Fired()
    with Watchdog(tmp_path, 0.2, processes=2, end=fired):
        activity.beat(1)
        assert fired.event.wait(60)
    assert "late: process 1" in fired[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_steps_and_batches_beat(tmp_path: Path) -> None:
    activity.reset()
    train(tiny(total_steps=2), tmp_path / "bare", jax.devices()[:1])
    assert (activity.PROGRESS.beats, activity.PROGRESS.step) == (2, 2)
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=20))
    activity.reset()
    train(tiny(total_steps=2, evals={"test": test}), tmp_path / "run", jax.devices()[:1])
    # 20 images are 2 batches of 16, their 100 captions 7; ranks are made in between.
    assert activity.PROGRESS.beats >= 2 + 2 + 7
