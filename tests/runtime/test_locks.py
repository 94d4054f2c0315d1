"""Locks: one owner at a time, stale ones taken over, lost ones noticed; no flock anywhere."""

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.runtime import lease, locks
from big_retrieval.runtime.lease import Lease, Owner

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux only")


class Clock:
    """Time that passes when somebody sleeps, and a say in what happens meanwhile."""

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
    made = locks.Lock(path, of="runs/a", **keys)
    if clock is not None:
        made._observer = locks.Observer(path, clock)
    return made


def write(path: Path, **changes: Any) -> Owner:
    """The lease of another process; by default one of another machine."""
    owner = replace(lease.this_process(), **{"boot": "another", "host": "node7", **changes})
    path.write_bytes(owner.encode())
    return owner


def dead(path: Path) -> Owner:
    """The lease of a process of this machine that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    began = lease.process_status(child.pid)[1]
    child.kill()
    child.wait()
    return write(path, boot=lease.this_process().boot, pid=child.pid, began=began, host="here")


def test_an_owner_is_named_and_the_second_is_refused(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "runs" / "a")
    with locks.Lock(path, of="runs/a", flag="--workdir"):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
        with pytest.raises(UserError) as problem:
            lock(path, flag="--workdir").acquire()
        assert re.fullmatch(
            rf"runs/a is in use by process {os.getpid()} on \S+ \(since \d{{4}}-\S+ \S+, last "
            r"heartbeat \d+ s ago\)\. Wait for it with --wait, or choose another --workdir\.",
            str(problem.value),
        )
    assert list(tmp_path.iterdir()) == []  # neither the lock nor the folders made for it stay


def test_an_error_releases_the_lock_and_keeps_written_files(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path / "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(ZeroDivisionError), locks.Lock(path, of="a"):
        assert 1 / 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


@LINUX
def test_the_lock_of_a_dead_process_of_this_machine_is_taken_over_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    owner = dead(tmp_path / "x.lock")
    taken = lock(tmp_path / "x.lock", clock)
    taken.acquire()
    assert clock.now == 1000.0
    said = capsys.readouterr().out
    assert said.startswith(f"taking over runs/a from process {owner.pid} on here (since ")
    taken.release()


@LINUX
def test_a_process_id_that_was_given_out_again_is_not_the_owner(
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
def test_a_zombie_is_gone_and_a_stopped_process_is_not() -> None:
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


def test_another_machines_owner_that_renews_is_refused_at_once(
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


def test_another_machines_owner_that_does_not_renew_is_gone(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "x.lock", time=time.time() + 1e6)  # its clock is of no importance
    taken = lock(tmp_path / "x.lock", clock)
    taken.acquire()
    assert clock.now == 1000 + locks.LEASE
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[1] for line in said] == ["belongs", "over"]
    assert "node7" in said[1]
    taken.release()


def test_an_observer_that_was_suspended_does_not_count_that_time(tmp_path: Path) -> None:
    write(tmp_path / "x.lock")
    clock = Clock()
    observer = locks.Observer(tmp_path / "x.lock", clock)
    assert observer.look() == "undecided"
    clock.now += 10 * locks.LEASE
    assert observer.look() == "undecided"


def test_waiting_goes_on_when_the_owner_releases_the_lock(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lock(tmp_path / "x.lock")
    first.acquire()

    def release() -> None:
        if clock.now > 1020:
            first.release()

    clock.meanwhile = release
    second = lock(tmp_path / "x.lock", clock, wait=True)
    second.acquire()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for process {os.getpid()} on ")
    second.check()
    second.release()


def test_waiting_for_another_machine_ends_when_it_dies(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.lock"
    owner = write(path)

    def beat() -> None:
        if clock.now <= 1100 and clock.now % 5 == 0:
            path.write_bytes(replace(owner, heartbeats=int(clock.now)).encode())

    clock.meanwhile = beat
    taken = lock(path, clock, wait=True)
    taken.acquire()
    assert 1100 + locks.LEASE <= clock.now <= 1105 + locks.LEASE
    said = [line.split(" ", 2)[:2] for line in capsys.readouterr().out.splitlines()]
    assert said == [["runs/a", "belongs"], ["waiting", "for"], ["taking", "over"]]
    taken.release()


@LINUX
@pytest.mark.parametrize("links", [True, False])
def test_of_many_takers_of_a_stale_lock_exactly_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def link(*args: Any, **keys: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    for attempt in range(8):
        path = tmp_path / f"{attempt}.lock"
        dead(path)
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
        (owner,) = [taker for taker in outcomes if taker is not None]
        owner.check()
        owner.release()
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_renewed_while_it_is_removed_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_taker_that_was_killed_in_the_middle_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    name = hashlib.sha256(dead(path).encode()).hexdigest()[:12]
    dead(tmp_path / f"x.lock.{name}")
    taken = lock(path)
    taken.acquire()
    taken.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_by_another_is_noticed_and_left_alone(tmp_path: Path) -> None:
    path, told = tmp_path / "x.lock", list[UserError]()
    mine = lock(path, lost=told.append)
    mine.acquire()
    mine.check()
    content = write(path, token="another").encode()
    with pytest.raises(UserError, match=r"runs/a belongs to process .* on node7 .* now"):
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
    monkeypatch.setattr(locks, "TICK", 0.01)
    monkeypatch.setattr(locks, "HEARTBEAT", 0.02)
    path, told = tmp_path / "x.lock", threading.Event()
    mine = lock(path, lost=lambda problem: told.set())
    mine.acquire()
    first = path.read_bytes()
    while path.read_bytes() == first:
        time.sleep(0.005)
    assert len(path.read_bytes()) == lease.SIZE
    content = replace(mine._lease.owner, token="another").encode()
    (tmp_path / "new").write_bytes(content)
    os.replace(tmp_path / "new", path)
    assert told.wait(10)
    assert path.read_bytes() == content  # not renewed
    mine.release()


def test_a_heartbeat_that_keeps_failing_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def renew(self: Lease) -> bool:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    mine = lock(tmp_path / "x.lock")
    mine.acquire()
    monkeypatch.setattr(Lease, "renew", renew)
    mine._verify(renew=True)
    assert capsys.readouterr().err == ""  # the disk may have room again in a moment
    mine._renewed -= locks.LEASE / 2
    mine._verify(renew=True)
    mine._verify(renew=True)
    said = capsys.readouterr().err
    assert re.fullmatch(r"warning: .*x.lock was not renewed .* \(Disk quota .*\); .*\n", said)
    mine.check()
    mine.release()


def test_a_removed_lock_is_put_back_as_long_as_nobody_can_have_had_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    mine = lock(path)
    mine.acquire()
    path.unlink()
    mine.check()
    assert path.exists()
    path.unlink()
    mine._renewed -= locks.LEASE  # suspended: another may have taken, used and released it
    with pytest.raises(UserError, match="belongs to nobody now"):
        mine.check()
    assert not path.exists()
    mine.release()


def test_a_forked_child_neither_checks_nor_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    with locks.Lock(path, of="x") as mine:
        content = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            mine.check()
            mine.release()
        assert path.read_bytes() == content


def test_a_disk_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_lock_that_another_machine_removes_while_it_is_read_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "x.lock", Path.read_bytes
    write(path)

    def stale(self: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read)
        self.unlink()
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "read_bytes", stale)
    taken = lock(path)
    taken.acquire()
    taken.release()


def test_an_output_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, words in (("file", "is a file"), ("file/below", "Cannot write")):
        with pytest.raises(UserError, match=words):
            lock(locks.in_folder(tmp_path / folder)).acquire()


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
