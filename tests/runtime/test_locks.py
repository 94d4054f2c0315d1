"""Locks: one owner at a time, stale ones taken over, lost ones noticed; no flock anywhere."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from big_retrieval.errors import UserError
from big_retrieval.runtime import locks
from tests.helpers import ROOT, environment

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only")
OWNER = """
import socket, sys, time
from pathlib import Path
from big_retrieval.runtime import locks
if len(sys.argv) > 2:
    socket.gethostname = lambda: sys.argv[2]
locks.LEASE, locks.HEARTBEAT = 1.5, 0.1
locks.Lock(Path(sys.argv[1]), of="x").acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that tests can wait for."""
    monkeypatch.setattr(locks, "LEASE", 1.5)
    monkeypatch.setattr(locks, "HEARTBEAT", 0.1)


@pytest.fixture
def owners() -> Iterator[Any]:
    """Starts processes that own a lock, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, host: str = "") -> subprocess.Popen[str]:
        args = [sys.executable, "-c", OWNER, str(path), *([host] if host else [])]
        process = subprocess.Popen(
            args, cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lock(path: Path, **keys: Any) -> locks.Lock:
    return locks.Lock(path, of="runs/a", **{"look": 0.05, **keys})


def take_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Another machine takes a lock, as after an owner stood still for too long."""
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "node7")
        other = filelock.SoftFileLease(path, lease_duration=locks.LEASE)
        other.acquire(blocking=False)
    content = path.read_bytes()
    other.release()
    path.write_bytes(content)
    return content


def test_an_owner_is_named_and_the_second_is_refused(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "runs" / "a")
    with locks.Lock(path, of="runs/a", flag="--workdir"):
        with pytest.raises(UserError) as problem:
            lock(path, flag="--workdir").acquire()
        assert re.fullmatch(
            rf"runs/a is in use by process {os.getpid()} on \S+: wait for it with --wait, or give "
            r"another --workdir\.",
            str(problem.value),
        )
    assert list(tmp_path.iterdir()) == []  # neither the lock nor the folders made for it stay


def test_a_folder_that_something_was_written_to_stays(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "a")
    with locks.Lock(path, of="a"):
        (tmp_path / "a" / "file").touch()
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["file"]


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(ZeroDivisionError), locks.Lock(path, of="x"):
        assert 1 / 0
    assert not path.exists()


@LINUX
def test_the_lock_of_a_dead_process_of_this_machine_is_taken_over_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], owners: Any
) -> None:
    owner = owners(tmp_path / "x.lock")
    owner.kill()
    owner.wait()
    taken = lock(tmp_path / "x.lock")
    assert taken.attempt() == "held"
    said = capsys.readouterr().out
    assert f"runs/a was left by process {owner.pid} on " in said
    assert "takes it over" in said
    taken.release()
    assert list(tmp_path.iterdir()) == []


@LINUX
def test_a_zombie_is_not_alive_and_a_stopped_process_is(tmp_path: Path, owners: Any) -> None:
    owner = owners(tmp_path / "x.lock")
    owner.send_signal(signal.SIGSTOP)
    os.waitpid(owner.pid, os.WUNTRACED)
    second = lock(tmp_path / "x.lock")
    assert second.attempt() == "alive"
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert second.attempt() == "undecided"
    second.acquire()
    second.release()


def test_another_machines_owner_that_renews_is_refused(tmp_path: Path, owners: Any) -> None:
    owners(tmp_path / "x.lock", "node7")
    second = lock(tmp_path / "x.lock")
    assert second.attempt() == "undecided"
    with pytest.raises(UserError, match=r"in use by process \d+ on node7: "):
        second.acquire()


def test_another_machines_owner_that_does_not_renew_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], owners: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(locks, "LOOK", 0.1)
    owners(tmp_path / "x.lock", "node7").kill()
    os.utime(tmp_path / "x.lock", (2e9, 2e9))  # its clock is of no importance
    begin, taken = time.monotonic(), lock(tmp_path / "x.lock")
    taken.acquire()
    assert time.monotonic() - begin >= locks.LEASE
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[1] for line in said] == ["belongs", "was"]
    assert "node7" in said[1]
    taken.release()


def test_waiting_goes_on_when_the_owner_releases_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOOK", 0.1)
    first, second = lock(tmp_path / "x.lock"), lock(tmp_path / "x.lock", wait=True)
    first.acquire()
    timer = threading.Timer(0.5, first.release)
    timer.start()
    second.acquire()
    timer.join()
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0] == f"waiting for process {os.getpid()} on {socket.gethostname()}, which uses runs/a"
    )
    second.check()
    second.release()


@LINUX
def test_of_many_takers_of_a_stale_lock_exactly_one_gets_it(tmp_path: Path, owners: Any) -> None:
    for attempt in range(3):
        path = tmp_path / f"{attempt}.lock"
        owner = owners(path)
        owner.kill()
        owner.wait()
        takers, outcomes = [lock(path) for _ in range(6)], []
        start = threading.Barrier(len(takers))

        def take(
            taker: locks.Lock, start: threading.Barrier = start, outcomes: list = outcomes
        ) -> None:
            start.wait()
            try:
                taker.acquire()
            except UserError:
                outcomes.append(None)
            else:
                outcomes.append(taker)

        threads = [threading.Thread(target=take, args=(taker,)) for taker in takers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [taker for taker in outcomes if taker is not None]
        winner.check()
        winner.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_by_another_is_noticed_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "x.lock", list[UserError]()
    monkeypatch.setattr(locks, "HEARTBEAT", 1.0)
    mine = lock(path, lost=told.append)
    mine.acquire()
    mine.check()
    content = take_away(path, monkeypatch)
    with pytest.raises(UserError, match=r"runs/a belongs to process .* on node7 now"):
        mine.check()
    assert len(told) == 1
    with pytest.raises(UserError):
        locks.check()
    mine.release()
    locks.check()
    assert path.read_bytes() == content


def test_the_heartbeat_notices_a_lost_lock_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "x.lock", threading.Event()
    mine = lock(path, lost=lambda problem: told.set())
    mine.acquire()
    first = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == first:
        time.sleep(0.005)
    content = take_away(path, monkeypatch)
    assert told.wait(10)
    assert path.read_bytes() == content
    mine.release()


def test_an_owner_without_its_lock_writes_nothing_more(tmp_path: Path) -> None:
    mine = lock(tmp_path / "x.lock")
    mine.acquire()
    (tmp_path / "x.lock").unlink()
    with pytest.raises(UserError, match="belongs to nobody now"):
        mine.check()
    mine.release()


@LINUX
def test_a_forked_child_neither_checks_nor_releases(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with locks.Lock(path, of="x") as mine:
        content = path.read_bytes()
        child = os.fork()
        if not child:
            mine.check()
            mine.release()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert path.read_bytes() == content
        mine.check()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*args: Any, **keys: Any) -> None:
        raise OSError(number, os.strerror(number))

    mine = lock(tmp_path / "a" / "x.lock", flag="--workdir")
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UserError) as problem:
        mine.acquire()
    why = os.strerror(number)
    assert str(problem.value) == f"--workdir runs/a cannot be written: {why}; choose another."
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_an_output_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, words in (("file", "is a file; name a"), ("file/below", "cannot be written")):
        with pytest.raises(UserError, match=words):
            lock(locks.in_folder(tmp_path / folder)).acquire()


def test_no_flock_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    def fail(*args: Any) -> None:
        raise AssertionError

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, fail)
    with locks.Lock(tmp_path / "x.lock", of="x") as mine:
        mine.check()


# ---- Several processes of one run


class Group:
    """What `broadcast` does between two processes, here two threads."""

    def __init__(self) -> None:
        self.barrier, self.word = threading.Barrier(2), ""

    def tell(self, word: str) -> str:
        self.word = word
        self.barrier.wait()
        self.barrier.wait()
        return word

    def hear(self, word: str) -> str:
        self.barrier.wait()
        found = self.word
        self.barrier.wait()
        return found


@pytest.mark.parametrize("refused", [True, False])
def test_the_other_processes_of_a_run_follow_the_first(tmp_path: Path, refused: bool) -> None:
    path, group, told = tmp_path / "x.lock", Group(), list[str]()
    other = lock(path)
    if refused:
        other.acquire()

    def follow() -> None:
        try:
            locks.follow(group.hear)
        except UserError as problem:
            told.append(str(problem))

    thread = threading.Thread(target=follow)
    thread.start()
    mine = lock(path)
    if refused:
        with pytest.raises(UserError, match="in use"):
            mine.acquire(group.tell)
    else:
        mine.acquire(group.tell)
    thread.join()
    assert len(told) == refused
    assert all("is in use by process" in word for word in told)
    mine.release()
    assert path.exists() == refused
    other.release()


def test_a_renamed_folder_is_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locks.Lock(locks.in_folder(folder), of=folder, flag="--workdir"):
        locks.check()
        folder.rename(tmp_path / "moved")
        with pytest.raises(UserError, match=r"renamed or removed.*--workdir set to its new place"):
            locks.check()
        assert not folder.exists()
