"""Locks: an output folder, or an output file, has one owner at a time.

    with Lock(in_folder(folder), of=folder, flag="--out"):
        ...  # only this process writes into the folder

A second process is refused with one sentence, or waits. The lock of a process that is gone is taken
over. On the same machine the kernel says whether a process is gone. The process of another machine
is gone when it has not renewed its lease (`big_retrieval.runtime.lease`) for `LEASE` seconds, which
the waiting process counts by its own clock: clocks that jump or disagree do no harm.

An owner that stood still for longer (a suspended machine) may have lost its lock. It notices before
its next heartbeat, or when it calls `check`, and then must not write any more.
"""

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from big_retrieval.errors import UserError
from big_retrieval.runtime import lease
from big_retrieval.runtime.lease import LEASE, LOOK, Lease, Observer, Owner

HEARTBEAT = 5.0  # seconds between two heartbeats
TICK = 1.0  # seconds after which an owner that was suspended notices that it was, at the latest
HELD = "held"
# Unlike the monotonic clock this one goes on while the machine is suspended; Linux has it.
_AWAKE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_held: list["Lock"] = []
log = logging.getLogger(__name__)


def in_folder(folder: Path) -> Path:
    """The lock of a folder whose files are written one by one."""
    return folder / "folder.lock"


def beside(path: Path) -> Path:
    """The lock of a file, or of a folder that gets its name when it is complete."""
    if path.is_dir():
        path = path.resolve()  # a link and its target share one lock, and "." has a name
    return path.with_name(path.name + ".lock")


def in_use(of: Path | str, owner: Owner | str, flag: str) -> str:
    """The sentence that refuses a second process; the arguments are those of `Lock`."""
    return f"{of} is in use by {owner}: wait for it with --wait, or give another {flag}."


class Lock:
    """The right to write to one output; a context in which this process has it."""

    def __init__(
        self,
        path: Path,
        *,
        of: Path | str,
        flag: str = "--out",
        wait: bool = False,
        lost: Callable[[UserError], object] | None = None,
        look: float = LOOK,
    ) -> None:
        """Takes nothing yet.

        Args:
          path: the lock's file, see `in_folder` and `beside`.
          of: the output, as the user named it.
          flag: the flag with which the user can name another output.
          wait: whether to wait for another owner instead of refusing.
          lost: called, in any thread, when the lock turns out to belong to another process. If
            `lost` returns or is missing, `check` raises the error.
          look: seconds between two looks at another's lock.
        """
        self._path, self._of, self._flag = path, of, flag
        self._wait, self._on_loss, self._pause = wait, lost, look
        self._lease, self._observer = Lease(path), Observer(path)
        self._made: list[Path] = []  # folders that were made for the lock, the innermost first
        self._waited = 0.0  # seconds
        self._said: set[str] = set()
        self._rights: dict[Path, Observer] = {}  # others' rights to remove a stale lock
        self._guard = threading.RLock()  # the heartbeat, checks and the release exclude each other
        self._closed = threading.Event()
        self._renewed = 0.0
        self._problem: UserError | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, broadcast: Callable[[str], str] = lambda word: word) -> None:
        """Takes the lock, at once or after waiting.

        Args:
          broadcast: tells the outcome of each attempt to the other processes of a run, which call
            `follow`.

        Raises:
          UserError: another process is the owner, or the folder cannot be written.
        """
        while True:
            try:
                word = self._attempt()
            except UserError as problem:
                word = str(problem)
            except OSError as problem:
                word = self._cannot_write(problem)
            if word == HELD:  # before the others are told: that may take longer than a lease
                self._renewed = time.clock_gettime(_AWAKE)
                threading.Thread(target=self._keep, daemon=True).start()
                _held.append(self)
            word = broadcast(word)
            if word == HELD:
                return
            if word:
                self._remove_made()
                raise UserError(word)
            time.sleep(self._pause)
            self._waited += self._pause

    def _attempt(self) -> str:
        """`HELD`; "" when it has to be tried again; or a sentence that says why it cannot be."""
        for parent in (self._path.parent, *self._path.parent.parents):
            if parent.exists():
                break
            self._made.append(parent)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        left = None
        while not self._lease.create():
            state, owner = self._observer.look(), self._observer.owner
            whose = owner or "a process that cannot be read"
            if state == "gone" and self._clear(self._observer):
                left = whose
            elif state == "alive" and not self._wait:
                return in_use(self._of, whose, self._flag)
            elif state == "alive":
                if self._waited >= LOOK:  # most writers of tables need less
                    self._say_once(f"waiting for {whose}, which uses {self._of}", owner)
                return ""
            elif state == "undecided":
                if self._observer.unchanged:
                    how = f"waiting up to {LEASE:.0f} s to see whether it is still alive"
                    self._say_once(f"{self._of} belongs to {whose}: {how}", owner)
                return ""
        if left:
            log.info(f"{self._of} was left by {left}, which is gone; this process takes it over")
        return HELD

    def _clear(self, stale: Observer) -> bool:
        """Removes a stale lock; False where another process was quicker, or is at it."""
        content = stale.content or b""
        # Only one process may remove a lock that several found stale: the others would remove the
        # new owner's. That right is a lease, too, named after the lock that it is the right to.
        name = hashlib.sha256(content).hexdigest()[:12]
        right = Lease(stale.path.with_name(f"{stale.path.name}.{name}"))
        if right.create():
            try:
                return self._lease.remove(stale.path, content)
            finally:
                right.release()
        other = self._rights.setdefault(right.path, Observer(right.path))
        if other.look() == "gone":  # it was killed in the middle
            self._clear(other)
        else:
            time.sleep(self._pause / 100)
        return False

    def _say_once(self, text: str, owner: Owner | None, level: int = logging.INFO) -> None:
        key = f"{text.split()[0]} {owner and owner.token}"
        if key not in self._said:
            self._said.add(key)
            log.log(level, text)

    def _cannot_write(self, problem: OSError) -> str:
        if isinstance(problem, FileExistsError):
            return f"{self._flag} {self._of}: {problem.filename} is a file; name a folder."
        return f"{self._flag} {self._of} cannot be written: {problem.strerror}; choose another."

    def _not_renewed(self, problem: OSError) -> str:
        why = f"has not been renewed for {LEASE / 2:.0f} s ({problem.strerror})"
        return f"the lock {self._path} {why}; another machine may take {self._of} over"

    def _keep(self) -> None:
        """Renews the lease until the lock is released or lost."""
        while not self._closed.wait(TICK):
            if time.clock_gettime(_AWAKE) - self._renewed >= HEARTBEAT:
                self._verify(renew=True)

    def check(self) -> None:
        """Makes sure that this process still owns the output; costs reading one small file.

        Raises:
          UserError: it does not.
        """
        self._verify(renew=False)
        if self._problem is not None:
            raise self._problem
        if not self._path.parent.is_dir():
            raise UserError(
                f"{self._of} was renamed or removed while this process wrote to it. Repeat the "
                f"command with {self._flag} set to its new place."
            )

    def _verify(self, *, renew: bool) -> None:
        """Notices a lost lock; renews the lease if asked to."""
        if os.getpid() != self._lease.owner.pid:  # a fork, whose copy of the guard may be taken
            return
        with self._guard:
            if self._closed.is_set():
                return
            now = time.clock_gettime(_AWAKE)
            try:
                ours = self._lease.renew() if renew else self._lease.is_ours()
                # Whoever lacks the file while its lease cannot have run out lost it by a mistake.
                if ours is None and now - self._renewed < LEASE / 2:
                    ours = self._lease.create()
            except OSError as problem:  # a disk that is full or away; the owner is still the owner
                if renew and now - self._renewed >= LEASE / 2:
                    self._say_once(self._not_renewed(problem), self._lease.owner, logging.WARNING)
                return
            if ours:
                if renew:
                    self._renewed = now
                return
            self._closed.set()
            content = self._lease.read()
            new = None if content is None else lease.parse(content)
            self._problem = UserError(
                f"{self._of} belongs to {new or 'nobody'} now: this process stood still for too "
                f"long, or {self._path} was removed; this process writes nothing more."
            )
        if self._on_loss is not None:
            self._on_loss(self._problem)

    def release(self) -> None:
        """Gives the lock back, if this process still has it."""
        if os.getpid() != self._lease.owner.pid:
            return
        with self._guard:
            if self not in _held:
                return
            _held.remove(self)
            if self._closed.is_set():
                return
            self._closed.set()
            with contextlib.suppress(OSError):
                self._lease.release()
            self._remove_made()

    def _remove_made(self) -> None:
        """Removes the folders that were made for the lock and have stayed empty."""
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()


def follow(broadcast: Callable[[str], str]) -> None:
    """Waits until the first process of a run has the lock or is refused.

    Args:
      broadcast: gives the first process's word to all processes, which all call it equally often.

    Raises:
      UserError: the first process was refused.
    """
    while not (word := broadcast("")):
        pass
    if word != HELD:
        raise UserError(word)


def check() -> None:
    """`Lock.check` of every lock that this process holds; nothing where it holds none."""
    for lock in list(_held):
        lock.check()
