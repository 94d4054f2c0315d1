"""Locks: one owner at a time, stale locks taken over, lost locks noticed."""

import errno
import hashlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.runtime import lease, locks
from big_retrieval.runtime.lease import Lease, Owner

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only")


class Clock:
    """Time that passes during `sleep`, which calls `meanwhile`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], Any] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(locks.time, "sleep", found.sleep)
    return found


def lock(path: Path, clock: Clock | None = None, **keys: Any) -> locks.Lock:
    made = locks.Lock(path, output="runs/a", **keys)
    if clock is not None:
        made._observer = locks.Observer(path, clock)
    return made


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[locks.Lock]:
    """The lock tmp_path/x.lock, held by this process."""
    with lock(tmp_path / "x.lock") as held:
        yield held


def write(path: Path, **changes: Any) -> Owner:
    """Writes the lease of another process, by default of another machine."""
    owner = replace(lease.this_process(), **{"boot": "another", "host": "node7", **changes})
    path.write_bytes(owner.encode())
    return owner


def dead(path: Path) -> Owner:
    """Writes the lease of a process of this machine that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    began = lease.process_status(child.pid)[1]
    child.kill()
    child.wait()
    return write(path, boot=lease.this_process().boot, pid=child.pid, began=began, host="here")


def test_second_owner_is_refused(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "runs" / "a")
    with locks.Lock(path, output="runs/a", flag="--workdir"):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
        with pytest.raises(UserError) as problem:
            lock(path, flag="--workdir").acquire()
        assert re.fullmatch(
            rf"runs/a is in use by process {os.getpid()} on \S+ \(since \d{{4}}-\S+ \S+, last "
            r"heartbeat \d+ s ago\)\. Wait for it with --wait, or choose another --workdir\.",
            str(problem.value),
        )
    assert list(tmp_path.iterdir()) == []  # neither the lock nor the folders made for it stay


def test_error_releases_the_lock(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(ZeroDivisionError), locks.Lock(path, output="a"):
        assert 1 / 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


@LINUX
def test_lock_of_a_dead_local_process_is_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    owner = dead(tmp_path / "x.lock")
    with lock(tmp_path / "x.lock", clock):
        assert clock.now == 1000.0
    printed = capsys.readouterr().out
    assert printed.startswith(f"taking over runs/a from process {owner.pid} on here (since ")


@LINUX
def test_liveness_compares_start_and_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = lease.this_process()
    assert lease.liveness(mine) == "alive"
    assert lease.liveness(replace(mine, began="1")) == "gone"
    assert lease.liveness(replace(mine, namespace="pid:[1]")) == "unknown"  # another container
    assert lease.liveness(replace(mine, boot="another")) == "unknown"
    assert lease.liveness(replace(mine, boot="")) == "unknown"
    assert lease.liveness(None) == "unknown"
    monkeypatch.setattr(lease, "process_status", lambda pid: ("", ""))  # /proc hides processes
    assert lease.liveness(mine) == "unknown"


@LINUX
def test_liveness_of_zombie_and_stopped_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    owner = replace(lease.this_process(), pid=child.pid, began=lease.process_status(child.pid)[1])
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert lease.liveness(owner) == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert lease.process_status(child.pid)[0] == "Z"
    assert lease.liveness(owner) == "gone"
    child.wait()
    assert lease.liveness(owner) == "gone"


def test_remote_owner_that_renews_is_alive(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.lock"
    owner = write(path)

    def beat() -> None:
        if clock.now == 1005:
            path.write_bytes(replace(owner, heartbeats=1).encode())

    clock.meanwhile = beat
    with pytest.raises(UserError, match="in use by process"):
        lock(path, clock).acquire()
    assert clock.now == 1005.0
    assert "waiting up to 60 s to see if it is alive" in capsys.readouterr().out


def test_remote_owner_that_does_not_renew_is_gone(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "x.lock", time=time.time() + 1e6)  # its clock does not matter
    with lock(tmp_path / "x.lock", clock):
        assert clock.now == 1000 + locks.LEASE
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[1] for line in printed] == ["belongs", "over"]
    assert "node7" in printed[1]


def test_observer_ignores_its_own_suspension(tmp_path: Path) -> None:
    write(tmp_path / "x.lock")
    clock = Clock()
    observer = locks.Observer(tmp_path / "x.lock", clock)
    assert observer.look() == "undecided"
    clock.now += 10 * locks.LEASE
    assert observer.look() == "undecided"


def test_waiting_ends_when_the_lock_is_released(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lock(tmp_path / "x.lock")
    first.acquire()

    def release() -> None:
        if clock.now > 1020:
            first.release()

    clock.meanwhile = release
    with lock(tmp_path / "x.lock", clock, wait=True) as second:
        second.check()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"waiting for process {os.getpid()} on ")


def test_waiting_ends_when_the_remote_owner_dies(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.lock"
    owner = write(path)

    def beat() -> None:
        if clock.now <= 1100 and clock.now % 5 == 0:
            path.write_bytes(replace(owner, heartbeats=int(clock.now)).encode())

    clock.meanwhile = beat
    with lock(path, clock, wait=True):
        assert 1100 + locks.LEASE <= clock.now <= 1105 + locks.LEASE
    words = [line.split(" ", 2)[:2] for line in capsys.readouterr().out.splitlines()]
    assert words == [["runs/a", "belongs"], ["waiting", "for"], ["taking", "over"]]


@LINUX
@pytest.mark.parametrize("links", [True, False])
def test_exactly_one_process_takes_a_stale_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def link(*args: Any, **keys: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    for attempt in range(8):
        path = tmp_path / f"{attempt}.lock"
        dead(path)
        start = threading.Barrier(6)

        def take(_: int, path: Path = path, start: threading.Barrier = start) -> locks.Lock | None:
            taker = lock(path)
            start.wait()
            try:
                taker.acquire()
            except UserError:
                return None
            return taker

        with ThreadPoolExecutor(6) as pool:
            (owner,) = filter(None, pool.map(take, range(6)))
        owner.check()
        owner.release()
    assert list(tmp_path.iterdir()) == []


def test_lock_renewed_during_removal_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"
    stale = write(path)
    live, rename = replace(stale, heartbeats=1).encode(), Path.rename

    def renewed(self: Path, target: Path) -> Path:
        self.write_bytes(live)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", renewed)
    assert not Lease(path).remove(path, stale.encode())
    assert path.read_bytes() == live
    assert list(tmp_path.iterdir()) == [path]


@LINUX
def test_killed_taker_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    name = hashlib.sha256(dead(path).encode()).hexdigest()[:12]
    dead(tmp_path / f"x.lock.{name}")
    with lock(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_lost_lock_is_noticed(tmp_path: Path) -> None:
    path, losses = tmp_path / "x.lock", list[UserError]()
    mine = lock(path, lost=losses.append)
    mine.acquire()
    mine.check()
    content = write(path, token="another").encode()
    with pytest.raises(UserError, match=r"runs/a belongs to process .* on node7 .* now"):
        mine.check()
    assert len(losses) == 1
    with pytest.raises(UserError):
        locks.check()
    mine.release()
    locks.check()
    assert path.read_bytes() == content


def test_heartbeat_notices_a_lost_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TICK", 0.01)
    monkeypatch.setattr(locks, "HEARTBEAT", 0.02)
    path, losses = tmp_path / "x.lock", threading.Event()
    mine = lock(path, lost=lambda problem: losses.set())
    mine.acquire()
    first = path.read_bytes()
    while path.read_bytes() == first:
        time.sleep(0.005)
    assert len(path.read_bytes()) == lease.SIZE
    content = replace(mine._lease.owner, token="another").encode()
    (tmp_path / "new").write_bytes(content)
    os.replace(tmp_path / "new", path)
    assert losses.wait(10)
    assert path.read_bytes() == content  # not renewed
    mine.release()


def test_failing_heartbeat_is_logged_once(
    mine: locks.Lock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def renew(self: Lease) -> bool:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Lease, "renew", renew)
    mine._verify(renew=True)
    assert capsys.readouterr().err == ""  # the disk may have room again in a moment
    mine._renewed -= locks.LEASE / 2
    mine._verify(renew=True)
    mine._verify(renew=True)
    printed = capsys.readouterr().err
    assert re.fullmatch(r"warning: .*x.lock was not renewed .* \(Disk quota .*\); .*\n", printed)
    mine.check()


def test_removed_lock_is_written_again_within_a_lease(mine: locks.Lock, tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.unlink()
    mine.check()
    assert path.exists()
    path.unlink()
    mine._renewed -= locks.LEASE  # suspended: another may have taken, used and released it
    with pytest.raises(UserError, match="belongs to nobody now"):
        mine.check()
    assert not path.exists()


def test_forked_child_neither_checks_nor_releases(
    mine: locks.Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (tmp_path / "x.lock").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        mine.check()
        mine.release()
    assert (tmp_path / "x.lock").read_bytes() == content


def test_unwritable_disk_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **keys: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    monkeypatch.setattr(lease.os, "open", fail)
    with pytest.raises(UserError) as problem:
        lock(tmp_path / "a" / "x.lock", flag="--workdir").acquire()
    why = os.strerror(errno.ENOSPC)
    assert str(problem.value) == f"Cannot write --workdir runs/a: {why}. Choose another."
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_lock_removed_during_read_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "x.lock", Path.read_bytes
    write(path)

    def stale(self: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read)
        self.unlink()
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "read_bytes", stale)
    with lock(path):
        pass


def test_output_below_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, words in (("file", "is a file"), ("file/below", "Cannot write")):
        with pytest.raises(UserError, match=words):
            lock(locks.in_folder(tmp_path / folder)).acquire()


# ---- Several processes of one run


@pytest.mark.parametrize("refused", [True, False])
def test_other_processes_follow_the_first(tmp_path: Path, refused: bool) -> None:
    path, words = tmp_path / "x.lock", queue.Queue[str]()

    def send(word: str) -> str:
        words.put(word)
        return word

    first = lock(path)
    with lock(path) if refused else nullcontext():
        with pytest.raises(UserError) if refused else nullcontext():
            first.acquire(send)
        with pytest.raises(UserError, match="is in use by process") if refused else nullcontext():
            locks.follow(lambda _: words.get(timeout=10))
        first.release()
        assert path.exists() == refused


def test_check_rejects_a_renamed_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locks.Lock(locks.in_folder(folder), output=folder, flag="--workdir"):
        locks.check()
        folder.rename(tmp_path / "moved")
        with pytest.raises(UserError, match=r"renamed or removed.*--workdir set to its new place"):
            locks.check()
        assert not folder.exists()
