"""Runs of a sweep: skipped, repeated, stopped by signals, and shared with other sweeps."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.runtime import progress
from big_retrieval.runtime.locks import Lock, in_folder
from big_retrieval.runtime.processes import Signals
from big_retrieval.sweep import Entry, Sweep, runner, spec
from tests.sweep.stubs import STUB, Stubs, becomes_free, csv_rows, in_use, wait_for

pytestmark = pytest.mark.usefixtures("stub")
Capture = pytest.CaptureFixture[str]


def test_finished_runs_are_skipped(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(runner, "QUIET", 0.0)
    stubs = Stubs(tmp_path, "finish", seeds=2)
    assert stubs.run() == 0
    out, bar = capfd.readouterr()
    assert "seed_0  starting]" in bar  # a slow machine also shows the step
    assert bar.splitlines()[-1].startswith("100% 2/2 [")
    assert "[1/2] 0-finish/seed_0  started" in out
    assert "[2/2] 0-finish/seed_1  finished in 0:0" in out
    assert "50.50 ± 0.71" in out
    table = (tmp_path / "results.csv").read_text()
    log = stubs.runs[0].folder / "log.txt"
    assert log.read_text().startswith("---- ")
    assert "step   1/200" in log.read_text()
    stamp = log.stat().st_mtime_ns
    assert stubs.run() == 0
    assert "[1/2] 0-finish/seed_0  finished already" in capfd.readouterr().out
    assert (log.stat().st_mtime_ns, (tmp_path / "results.csv").read_text()) == (stamp, table)


def test_evaluated_entry_writes_evaluation(tmp_path: Path, capfd: Capture) -> None:
    stubs = Stubs(tmp_path, "finish")
    bm25 = Entry("bm25", "x.py", {"mode": "finish"}, evaluate="--bm25")
    stubs.sweep = Sweep(runs=[bm25, *stubs.sweep.runs], metrics=("*/R@1",))
    stubs.runs = spec.runs_of(stubs.sweep, tmp_path)
    assert stubs.run() == 0
    assert stubs.run() == 0
    out = capfd.readouterr().out
    assert "| bm25     |     1 |" in out
    assert "[1/2] bm25/seed_0  finished already" in out
    assert [path.name for path in stubs.runs[0].folder.glob("*.json")] == ["evaluation.json"]
    assert "| `--bm25`, `mode=finish`" in (tmp_path / "results.md").read_text()


def test_failed_run_is_reported_and_repeated(
    tmp_path: Path, capfd: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    stubs = Stubs(tmp_path, "fail", "refuse", "quit", "finish")
    assert stubs.run() == 1
    out = "".join(capfd.readouterr())
    assert "0-fail/seed_0  failed with status 1" in out
    assert "    RuntimeError: something broke" in out
    assert "1-refuse/seed_0  failed with status 2" in out
    assert "\n    error: config.x is 3; it must be 4.\n" in out
    assert "2-quit/seed_0  step   1/200" in out  # status 0, but not finished
    assert "3-finish/seed_0  finished in" in out
    assert "failed: 0-fail/seed_0\nrefused: 1-refuse/seed_0\nstopped: 2-quit/seed_0\n" in out
    assert "3 of 4 runs are not finished" in out
    assert [row["name"] for row in csv_rows(tmp_path)] == ["3-finish"]
    for run in (stubs.runs[0], stubs.runs[2]):
        (run.folder / "repaired").write_text("")
    with caplog.at_level(logging.WARNING, "big_retrieval"):  # as --verbosity=warning
        assert stubs.run() == 2  # repeating does not help
    out, err = capfd.readouterr()
    assert out == ""
    assert "refused: 1-refuse/seed_0\n1 of 4 runs are not finished" in err
    (stubs.runs[1].folder / "repaired").write_text("")
    assert stubs.run() == 0
    assert "something broke" not in capfd.readouterr().out


@pytest.mark.parametrize("number", runner.SIGNALS)
def test_signal_saves_run(tmp_path: Path, capfd: Capture, number: signal.Signals) -> None:
    stubs = Stubs(tmp_path, "wait", "finish")
    killer = threading.Thread(target=lambda: (stubs.wait_for_start(), os.kill(os.getpid(), number)))
    killer.start()
    assert stubs.run() == 128 + number
    killer.join()
    assert (stubs.runs[0].folder / "saved").exists()
    assert not stubs.runs[1].folder.exists()
    out = capfd.readouterr().out
    assert "0-wait/seed_0  stopped after step 1 of 200" in out
    assert out.endswith("stopped; to continue, repeat the same command\n")
    (stubs.runs[0].folder / "repaired").write_text("")
    assert stubs.run() == 0


def test_second_signal_does_not_wait(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "deaf")

    def kill_twice() -> None:
        stubs.wait_for_start()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        assert in_use(stubs.runs[0].folder)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=kill_twice)
    killer.start()
    assert stubs.run() == 128 + signal.SIGINT
    killer.join()
    assert not (stubs.runs[0].folder / "saved").exists()
    assert becomes_free(stubs.runs[0].folder)


def test_ignored_signal_stays_ignored() -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with Signals(*runner.SIGNALS) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.first is None
    signal.signal(signal.SIGHUP, handler)


def test_terminal_signal_reaches_run_once(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "wait")
    sweep = stubs.start()
    os.killpg(sweep.pid, signal.SIGINT)  # a terminal signals all processes of the foreground
    assert sweep.wait() == 128 + signal.SIGINT
    assert (stubs.runs[0].folder / "saved").exists()
    assert "KeyboardInterrupt" not in (stubs.runs[0].folder / "log.txt").read_text()


def test_killed_sweep_leaves_no_process(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "deaf")
    sweep = stubs.start()
    assert in_use(stubs.runs[0].folder)
    sweep.kill()
    sweep.wait()
    assert becomes_free(stubs.runs[0].folder)
    assert not (stubs.runs[0].folder / "saved").exists()


def test_child_of_ended_parent_ends(tmp_path: Path) -> None:
    stub = [STUB, f"--workdir={tmp_path}", "--config.mode=quit", "--config.seed=0"]
    for parent, status in ((os.getpid(), 0), (os.getppid(), -signal.SIGKILL)):
        command = [sys.executable, "-m", "big_retrieval.runtime.child", str(parent), *stub]
        assert subprocess.run(command).returncode == status


def test_child_watches_parent_without_help_of_kernel(tmp_path: Path) -> None:
    lines = [
        "import sys, time; from pathlib import Path; from big_retrieval.runtime import child",
        "from big_retrieval.runtime.locks import Lock, in_folder",
        "child._kernel_kills = lambda: False",
        f"Lock(in_folder(Path({str(tmp_path)!r})), output='x').acquire()",
        "child.end_with(int(sys.argv[1]))",
        f"Path({str(tmp_path / 'started')!r}).write_text('1')",
        "time.sleep(600)",
    ]
    middle = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {chr(10).join(lines)!r}, str(os.getpid())])\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", middle])
    wait_for(tmp_path / "started")
    assert in_use(tmp_path)
    parent.kill()
    parent.wait()
    assert becomes_free(tmp_path)


def test_two_sweeps_share_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.1)
    stubs = Stubs(tmp_path, "wait", "finish")
    other = stubs.start()
    log = (stubs.runs[0].folder / "log.txt").read_text()
    assert stubs.run() == 1  # leaves run 0 to the other sweep, and finishes run 1
    assert (stubs.runs[0].folder / "log.txt").read_text() == log
    assert [row["name"] for row in csv_rows(tmp_path)] == ["1-finish"]
    other.terminate()
    assert other.wait() == 128 + signal.SIGTERM


def test_run_locked_at_its_start_is_left_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    stubs, look, looks = Stubs(tmp_path, "finish"), runner._in_use, list[Any]()

    def in_use(*args: Any) -> bool:
        looks.append(args)
        return len(looks) > 1 and look(*args)

    monkeypatch.setattr(runner, "_in_use", in_use)
    with Lock(in_folder(stubs.runs[0].folder), output="run"):
        assert stubs.run() == 1
    assert "left to the process that is running it" in capfd.readouterr().out
    assert "is in use by process" in (stubs.runs[0].folder / "log.txt").read_text()
