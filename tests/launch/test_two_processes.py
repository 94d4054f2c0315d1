"""Two processes by launch/local.sh, of two devices each: killed, hanging, stopped, interrupted."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, command, environment, losses, results
from tests.launch.conftest import Start
from tests.launch.running import SCRIPT, SMALL, wait_for

STEPS = ["--config.total_steps=12", "--config.checkpoint_every=4"]


def launch(workdir: Path, *flags: str, run: tuple[str, ...] = ()) -> list[str]:
    """The command line of a launcher of two processes."""
    return [SCRIPT, "--devices=2", *flags, "--", *SMALL, *STEPS, f"--workdir={workdir}", *run]


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    output = process.communicate(timeout=600)[0]
    assert process.returncode == status, output
    return output


def children_of(process: subprocess.Popen[str]) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return sorted(map(int, listing.stdout.split()))


def step_of(workdir: Path) -> int:
    try:
        return max(losses(workdir), default=0)
    except (OSError, ValueError):
        return 0


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    workdir = tmp_path_factory.mktemp("whole")
    subprocess.run(
        launch(workdir), cwd=ROOT, env=environment(PYTHON=sys.executable), check=True,
        capture_output=True, timeout=600,
    )  # fmt: skip
    return workdir


@pytest.mark.slow
def test_killed_run_equals_uninterrupted_run(tmp_path: Path, full_run: Path, start: Start) -> None:
    process = start(*launch(tmp_path / "cut"))
    wait_for(lambda: step_of(tmp_path / "cut") >= 6)
    first = children_of(process)
    os.kill(first[1], signal.SIGKILL)
    wait_for(lambda: len({*children_of(process)} - {*first}) == 2)
    wait_for(lambda: step_of(tmp_path / "cut") >= 9)
    os.kill(children_of(process)[0], signal.SIGKILL)
    output = finish(process)
    for victim, again in ((1, 1), (0, 2)):
        assert f"process {victim} was ended by SIGKILL" in output
        assert f"starting all again, {again} of 3" in output
    expected, found = results(full_run), results(tmp_path / "cut")
    assert expected["resumed_from"] is None
    assert found["resumed_from"] in (4, 8)
    assert found["devices"] == 4
    assert found["params_sha256"] == expected["params_sha256"]
    assert losses(tmp_path / "cut") == losses(full_run)
    assert len(losses(tmp_path / "cut")) == 12
    assert not (tmp_path / "cut" / "heartbeats").exists()


@pytest.mark.slow
def test_metrics_do_not_depend_on_the_number_of_processes(tmp_path: Path, full_run: Path) -> None:
    args = command("evaluate", f"--run={full_run}", f"--out={tmp_path / 'one'}")
    subprocess.run(args, cwd=ROOT, env=environment(4), check=True, capture_output=True)
    found = json.loads((tmp_path / "one" / "evaluation.json").read_text())
    metrics = {name: x for name, x in found.items() if name.startswith(("retrieval/", "zero"))}
    assert metrics
    assert metrics == {name: results(full_run)[name] for name in metrics}


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_hanging_process_is_named(tmp_path: Path, start: Start, late: int) -> None:
    process = start(
        *launch(
            tmp_path / "run", "--module=tests.launch.late", "--restarts=0",
            run=("--config.hang_after=12",),
        ),
        LATE=f"{late}:5:sleep",
    )  # fmt: skip
    output = finish(process, status=75)
    late_text = f"late: process {late} (at step 4 in "
    other = (tmp_path / "run" / "logs" / f"process_{1 - late}.log").read_text()
    assert late_text in other.splitlines()[-1], other
    # Both run out of patience at about the same time; whoever is second loses the first.
    cause = (
        rf"process {1 - late}: no progress for 1\d s since step [45]; |another process is lost, "
    )
    which = "" if late else r"\[process 1\] "  # the first process speaks for all
    assert re.search(rf"^{which}error: ({cause})late", other, re.M), other
    own = (tmp_path / "run" / "logs" / f"process_{late}.log").read_text()
    assert "late.py" in own  # the stack says where it hangs
    assert late_text in output


@pytest.mark.slow
def test_error_in_one_process_ends_all(tmp_path: Path, start: Start) -> None:
    process = start(
        *launch(tmp_path / "run", "--module=tests.launch.late", "--restarts=1"), LATE="1:3:raise"
    )
    output = finish(process, status=1)
    assert "RuntimeError: a mistake in the code" in output
    assert output.count("process 1 ended with status 1") == 2
    assert "giving up after 1 restarts" in output


@pytest.mark.slow
def test_sigint_saves(tmp_path: Path, start: Start) -> None:
    long = ("--config.checkpoint_every=1000", "--config.total_steps=100000")
    process = start(*launch(tmp_path / "run", run=long))
    wait_for(lambda: step_of(tmp_path / "run") >= 2)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    stopped = re.search(r"stopped after step (\d+) of 100000", output)
    assert stopped is not None, output
    saved = tmp_path / "run" / "checkpoints" / stopped[1]
    assert json.loads((saved / "meta.json").read_text())["step"] == int(stopped[1])
