"""launch/local.sh: what is asked for, and children that die, stop and listen to signals."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from big_retrieval import launch
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks, processes
from big_retrieval.runtime.lease import process_status
from tests.launch.running import SCRIPT, wait_for

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only")


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)


# ---- What is asked for


def test_a_dry_run_prints_commands_that_a_shell_understands(tmp_path: Path) -> None:
    flags = ["--processes=3", "--devices=4", "--port=4711", "--dry-run"]
    run = ["--config=a file.py", f"--workdir={tmp_path / 'run'}"]
    done = subprocess.run(
        [SCRIPT, *flags, "--", *run], env={**os.environ, "XLA_FLAGS": "--a=1"},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        words = shlex.split(line)
        env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        assert env["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:4711"
        assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("3", str(number))
        assert env["XLA_FLAGS"] == "--a=1 --xla_force_host_platform_device_count=4"
        assert (env["JAX_PLATFORMS"], env["NPROC"]) == ("cpu", "16")
        log = str(tmp_path / "run" / "logs" / f"process_{number}.log")
        assert words[-7:] == ["-m", "big_retrieval.main", *run, ">>", log, "2>&1"]
    assert list(tmp_path.iterdir()) == []


def test_variables_of_one_process_and_of_gpus() -> None:
    options = launch.parse(["--processes=1", "--", "--distributed", "--workdir", "w"])
    assert options.logs == Path("w/logs")
    assert not any(name.startswith("JAX") for name in processes.variables(options, 0, 1, {}))
    options = launch.parse(["--gpus=2", "--", "--workdir=w"])
    shares = [processes.variables(options, k, 1, {})["JAX_LOCAL_DEVICE_IDS"] for k in (0, 1)]
    assert shares == ["0,1", "2,3"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--processes=0", "--", "--workdir=w"], "--processes is 0; it must be at least 1"),
        (["--devices=four", "--", "--workdir=w"], "--devices"),
        (["--proceses=2", "--", "--workdir=w"], "--proceses=2"),
        (["--config=x.py", "--workdir=w"], "--config=x.py"),
        ([], "No command"),
        (["--", "--config=x.py"], "Add --workdir=DIR after --"),
    ],
)
def test_mistakes_are_one_sentence(argv: list[str], words: str) -> None:
    with pytest.raises(UserError) as problem:
        launch.parse(argv)
    assert words in str(problem.value)


def test_logs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert launch.main(["--", f"--workdir={tmp_path / 'file'}"]) == 2
    assert str(tmp_path / "file" / "logs") in capsys.readouterr().err


@LINUX
def test_a_second_launcher_writes_nothing_into_the_logs_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locks.Lock(locks.in_folder(tmp_path / "run"), of="run"):
        assert launch.main(["--", f"--workdir={tmp_path / 'run'}"]) == 2
        assert "run is in use by process" in capsys.readouterr().err
        assert not (tmp_path / "run" / "logs").exists()
        launch.check_free([f"--workdir={tmp_path / 'run'}", "--wait"])
    launch.check_free([f"--workdir={tmp_path / 'run'}"])


# ---- Supervision, with children that need no jax

CHILD = """
import os, signal, subprocess, sys, time
from pathlib import Path

number, folder = os.environ["JAX_PROCESS_ID"], Path(os.environ["CHILD_FOLDER"])
start = len(list(folder.glob(f"start_{number}_*")))
(folder / f"start_{number}_{start}").write_text(str(os.getpid()))
print("child", number, "start", start, flush=True)
other = folder / f"start_{1 - int(number)}_{start}"
while not other.exists() or not other.read_text():  # so that both have started before one ends
    time.sleep(0.01)

def wait(*_):
    while True:
        time.sleep(0.05)

def ask(*_):
    (folder / f"asked_{number}").touch()
    sys.exit(0)

exec({plan!r})
"""


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes a module of children that follow a plan; returns the launcher's command line."""

    def make(plan: str, *flags: str) -> list[str]:
        (tmp_path / "childmodule.py").write_text(CHILD.replace("exec({plan!r})", plan))
        monkeypatch.setenv("CHILD_FOLDER", str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return [SCRIPT, "--module=childmodule", *flags, "--", f"--workdir={tmp_path / 'run'}"]

    return make


def execute(args: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, timeout=120)


def test_the_cause_counts_and_not_what_follows_from_it(
    children: Callable[..., list[str]], tmp_path: Path
) -> None:
    plan = "time.sleep(1.0 * (number == '1')); sys.exit(75 if number == '0' else 9)"
    done = execute([*children(plan, "--restarts=1"), "--verbosity=warning"])
    assert done.returncode == 9, done.stderr
    assert "launch: warning: process 1 ended with status 9" in done.stderr
    assert "starting all again" not in done.stderr  # of the level info
    assert starts(tmp_path, 1) == 2


def starts(folder: Path, number: int) -> int:
    return len(list(folder.glob(f"start_{number}_*")))


def test_all_are_started_again_when_one_dies(
    children: Callable[..., list[str]], tmp_path: Path
) -> None:
    plan = """
if start == 0 and number == "1":
    worker = subprocess.Popen(["sleep", "600"])
    (folder / "worker").write_text(str(worker.pid))
    os.kill(os.getpid(), signal.SIGKILL)
if start == 0:
    wait()
"""
    done = execute(children(plan))
    assert done.returncode == 0, done.stderr
    assert not alive(int((tmp_path / "worker").read_text()))
    assert "process 1 was ended by SIGKILL" in done.stderr
    assert "starting all again, 1 of 3" in done.stderr
    assert done.stdout.splitlines() == ["child 0 start 0", "child 0 start 1"]
    assert "  1 | child 1 start 0" in done.stderr  # the last words of the one that died
    log = (tmp_path / "run" / "logs" / "process_1.log").read_text()
    assert re.findall("child.*", log) == ["child 1 start 0", "child 1 start 1"]


def test_those_that_do_not_listen_to_sigterm_are_killed(
    children: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(9) if number == "1" else wait()
"""
    monkeypatch.setattr(processes, "GRACE", 0.2)
    assert launch.main(children(plan, "--restarts=1")[1:]) == 9
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (2, 2)


@LINUX
def test_a_stopped_process_is_named_and_ended(
    children: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plan = """
if start:
    sys.exit()
if number == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
from big_retrieval.runtime.lease import process_status
while process_status(int(other.read_text()))[0] != "T":
    time.sleep(0.01)
sys.exit(75)
"""
    monkeypatch.setattr(processes, "GRACE", 0.2)
    assert launch.main(children(plan)[1:]) == 0
    said = "".join(capfd.readouterr())
    assert "process 1 ended with status 75" in said
    assert "process 0 is stopped (SIGSTOP" in said


def test_a_mistake_of_the_user_is_not_repeated(
    children: Callable[..., list[str]], tmp_path: Path
) -> None:
    done = execute(children('print("error: no such file"); sys.exit(2)'))
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "error: no such file"
    assert "again" not in done.stderr
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (1, 1)


def test_what_follows_from_a_death_is_no_mistake_of_the_user(
    children: Callable[..., list[str]],
) -> None:
    plan = """
if start == 0:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(2))  # as a failed save ends
    os.kill(os.getpid(), signal.SIGKILL) if number == "1" else wait()
"""
    assert execute(children(plan)).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_waited_for(
    children: Callable[..., list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    plan = "signal.signal(signal.SIGTERM, ask)\nprint('ready', flush=True)\nwait()"
    launcher = subprocess.Popen(children(plan), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: "ready" in logs(tmp_path / "run", 0) and "ready" in logs(tmp_path / "run", 1))
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == 0
    assert (tmp_path / "asked_0").exists()
    assert (tmp_path / "asked_1").exists()
    launcher.communicate()


def test_a_second_signal_does_not_wait(children: Callable[..., list[str]], tmp_path: Path) -> None:
    plan = """
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("ready", flush=True)
wait()
"""
    launcher = subprocess.Popen(children(plan), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: "ready" in logs(tmp_path / "run", 0) and "ready" in logs(tmp_path / "run", 1))
    launcher.terminate()
    wait_for(lambda: "no" in logs(tmp_path / "run", 0).splitlines())
    launcher.terminate()
    assert launcher.wait(timeout=60) == 128 + signal.SIGKILL
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (1, 1)
    launcher.communicate()


@LINUX
def test_no_process_outlives_a_killed_launcher(
    children: Callable[..., list[str]], tmp_path: Path
) -> None:
    launcher = subprocess.Popen(children("wait()"), stdout=subprocess.DEVNULL)
    wait_for(lambda: all(logs(tmp_path / "run", k) for k in (0, 1)))
    pids = [int((tmp_path / f"start_{k}_0").read_text()) for k in (0, 1)]
    assert all(map(alive, pids))
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    return process_status(pid)[0] not in ("", "Z")


def logs(workdir: Path, number: int) -> str:
    path = workdir / "logs" / f"process_{number}.log"
    text = path.read_text() if path.exists() else ""
    return text if "child" in text or "step" in text else ""
