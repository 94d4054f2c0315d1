"""launch/local.sh: its flags, and children that die, stop and handle signals."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from big_retrieval import launch
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks, processes
from big_retrieval.runtime.lease import process_status
from tests.launch.conftest import Start
from tests.launch.running import SCRIPT, wait_for

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only")


# ---- Flags


def test_exit_statuses_are_named() -> None:
    numbers = (2, -signal.SIGKILL, -(signal.SIGRTMIN + 3))
    assert [processes.format_exit_status(x) for x in numbers] == [
        "ended with status 2", "was ended by SIGKILL", f"was ended by signal {-numbers[2]}",
    ]  # fmt: skip


def test_variables_of_processes() -> None:
    options = launch.parse(["--processes=1", "--", "--distributed", "--workdir", "w"])
    assert options.logs == Path("w/logs")
    assert not any(name.startswith("JAX") for name in processes.variables(options, 0, 1, {}))
    options = launch.parse(["--gpus=2", "--", "--workdir=w"])
    shares = [processes.variables(options, k, 1, {})["JAX_LOCAL_DEVICE_IDS"] for k in (0, 1)]
    assert shares == ["0,1", "2,3"]
    options = launch.parse(["--processes=3", "--devices=4", "--", "--workdir=w"])
    env = processes.variables(options, 1, 4711, {"XLA_FLAGS": "--a=1"})
    assert env["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:4711"
    assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("3", "1")
    assert env["XLA_FLAGS"] == "--a=1 --xla_force_host_platform_device_count=4"
    assert (env["JAX_PLATFORMS"], env["NPROC"]) == ("cpu", "16")


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
def test_parse_rejects_flags(argv: list[str], words: str) -> None:
    with pytest.raises(UserError) as problem:
        launch.parse(argv)
    assert words in str(problem.value)


def test_main_rejects_unwritable_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert launch.main(["--", f"--workdir={tmp_path / 'file'}"]) == 2
    assert str(tmp_path / "file" / "logs") in capsys.readouterr().err


@LINUX
def test_second_launcher_writes_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.Lock(locks.in_folder(tmp_path / "run"), output="run"):
        assert launch.main(["--", f"--workdir={tmp_path / 'run'}"]) == 2
        assert "run is in use by process" in capsys.readouterr().err
        assert not (tmp_path / "run" / "logs").exists()
        launch.check_free([f"--workdir={tmp_path / 'run'}", "--wait"])
    launch.check_free([f"--workdir={tmp_path / 'run'}"])


# ---- Supervision, with children that need no jax

Children = Callable[..., list[str]]

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
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Children:
    """Makes a module of children that follow a plan; returns the launcher's command line."""

    def make(plan: str, *flags: str) -> list[str]:
        (tmp_path / "childmodule.py").write_text(CHILD.replace("exec({plan!r})", plan))
        monkeypatch.setenv("CHILD_FOLDER", str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return [SCRIPT, "--module=childmodule", *flags, "--", f"--workdir={tmp_path / 'run'}"]

    return make


def execute(args: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, timeout=120)


def test_status_is_that_of_the_cause(children: Children, tmp_path: Path) -> None:
    plan = "time.sleep(1.0 * (number == '1')); sys.exit(75 if number == '0' else 9)"
    done = execute([*children(plan, "--restarts=1"), "--verbosity=warning"])
    assert done.returncode == 9, done.stderr
    assert "launch: warning: process 1 ended with status 9" in done.stderr
    assert "starting all again" not in done.stderr  # of the level info
    assert starts(tmp_path, 1) == 2


def starts(folder: Path, number: int) -> int:
    return len(list(folder.glob(f"start_{number}_*")))


def test_launcher_restarts_all_when_one_dies(children: Children, tmp_path: Path) -> None:
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


def test_children_that_ignore_sigterm_are_killed(
    children: Children, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(9) if number == "1" else wait()
"""
    monkeypatch.setattr(processes, "GRACE", 0.2)
    assert launch.main(children(plan, "--restarts=1")[1:]) == 9
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (2, 2)


@LINUX
def test_stopped_child_is_named_and_ended(
    children: Children,
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


def test_user_error_is_not_repeated(children: Children, tmp_path: Path) -> None:
    done = execute(children('print("error: no such file"); sys.exit(2)'))
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "error: no such file"
    assert "again" not in done.stderr
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (1, 1)


def test_status_2_after_a_death_restarts(
    children: Children,
) -> None:
    plan = """
if start == 0:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(2))  # as a failed save ends
    os.kill(os.getpid(), signal.SIGKILL) if number == "1" else wait()
"""
    assert execute(children(plan)).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_passed_on(
    children: Children, tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    plan = "signal.signal(signal.SIGTERM, ask)\nprint('ready', flush=True)\nwait()"
    launcher = start(*children(plan))
    wait_for(lambda: all("ready" in logs(tmp_path / "run", k) for k in (0, 1)))
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == 0
    assert (tmp_path / "asked_0").exists()
    assert (tmp_path / "asked_1").exists()


def test_second_signal_kills(children: Children, tmp_path: Path, start: Start) -> None:
    plan = """
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("ready", flush=True)
wait()
"""
    launcher = start(*children(plan))
    wait_for(lambda: all("ready" in logs(tmp_path / "run", k) for k in (0, 1)))
    launcher.terminate()
    wait_for(lambda: "no" in logs(tmp_path / "run", 0).splitlines())
    launcher.terminate()
    assert launcher.wait(timeout=60) == 128 + signal.SIGKILL
    assert (starts(tmp_path, 0), starts(tmp_path, 1)) == (1, 1)


@LINUX
def test_children_end_with_a_killed_launcher(children: Children, tmp_path: Path) -> None:
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
