"""Locks: an output folder or an output file has one owner at a time.

    with Lock(in_folder(folder), of=folder, flag="--out"):
        ...  # only this process writes into the folder

A second process is refused with one sentence, or waits. The lock is a small file that its owner
touches every `HEARTBEAT` seconds (`filelock.SoftFileLease`): it works where `flock` does not, such
as on network file systems. The lock of a process that is gone is taken over: at once on the same
machine, whose kernel knows; elsewhere if the file was not touched for `LEASE` seconds of the
waiting process's clock.

An owner that stood still for longer than that may have lost its lock. It notices at one of its next
heartbeats or in `check`, and then must not write any more.
"""

import contextlib
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from filelock import LeaseCompromise, OwnerRecord, SoftFileLease, Timeout

from big_retrieval.errors import UserError

HEARTBEAT = 5.0  # seconds between two heartbeats
LEASE = 60.0  # seconds without a heartbeat after which an owner is gone
LOOK = 1.0  # seconds between two looks at another's lock
State = Literal["held", "alive", "undecided"]
HELD: State = "held"
_held: list["Lock"] = []
log = logging.getLogger(__name__)


def in_folder(folder: Path) -> Path:
    """Returns the lock of a folder whose files are written one by one."""
    return folder / "folder.lock"


def beside(path: Path) -> Path:
    """Returns the lock of a file, or of a folder that gets its name when it is complete."""
    if path.is_dir():
        path = path.resolve()  # a link and its target share one lock, and "." has a name
    return path.with_name(path.name + ".lock")


@functools.cache
def _here() -> str:
    """Returns the name that locks of this machine and its namespace of processes have."""
    with tempfile.TemporaryDirectory() as folder:
        lease = SoftFileLease(Path(folder, "lock"))
        with lease:
            owner = lease.owner
    return owner.hostname if owner else ""


def _is_zombie(pid: int) -> bool:
    """Returns True for a process that has ended and whose parent has not noticed (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return False


class Lock:
    """The right to write to one output; a context in which this process has it.

    Args:
      path: the lock's file, see `in_folder` and `beside`.
      of: the output, as the user named it.
      flag: the flag with which the user can name another output.
      wait: True to wait for another owner instead of refusing.
      lost: called with the error, in any thread, if the lock turns out to belong to another
        process. If it returns or is None, `check` raises the error.
      look: seconds between two looks at another's lock.
    """

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
        self._path, self._of, self._flag = path, of, flag
        self._wait, self._on_loss, self._pause = wait, lost, look
        self._process = os.getpid()
        self._lease = SoftFileLease(
            path,
            lease_duration=LEASE,
            heartbeat_interval=HEARTBEAT,
            on_compromise=self._compromised,
            thread_local=False,
            is_singleton=False,
        )
        self._made: list[Path] = []  # folders that were made for the lock, the innermost first
        self._said: set[str] = set()
        self._seen: tuple[str | None, int] = ("", 0)  # claim and last heartbeat of another owner
        self._renewing = ""  # claim of an owner whose heartbeat was seen
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
        start = time.monotonic()
        while True:
            try:
                state = self.attempt()
                refused = state == "alive" and not self._wait
                word = self.refusal if refused else HELD if state == HELD else ""
                if not word and time.monotonic() - start >= LOOK:  # most writers need less
                    self._say_waiting(state)
            except UserError as problem:
                word = str(problem)
            word = broadcast(word)
            if word == HELD:
                return
            if word:
                self._remove_made()
                raise UserError(word)
            time.sleep(self._pause)

    def attempt(self) -> State:
        """Tries once to take the lock.

        Returns:
          "held" if it is this process's now, "alive" if its owner is known to run, else
          "undecided"; then try again later.

        Raises:
          UserError: the folder cannot be written.
        """
        try:
            self._make_folder()
            before = self._lease.owner
            self._lease.acquire(blocking=False)
        except Timeout:
            return self._state_of_owner()
        except OSError as problem:
            self._remove_made()
            raise self._cannot_write(problem) from None
        if before is not None:
            whose = self._name(before)
            log.info(f"{self._of} was left by {whose}, which is gone; this process takes it over")
        _held.append(self)
        return HELD

    @property
    def refusal(self) -> str:
        """The sentence that refuses a second process."""
        return (
            f"{self._of} is in use by {self._name(self._lease.owner)}: wait for it with --wait, or "
            f"give another {self._flag}."
        )

    def _make_folder(self) -> None:
        for parent in (self._path.parent, *self._path.parent.parents):
            if parent.exists():
                break
            self._made.append(parent)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _state_of_owner(self) -> State:
        owner, token = self._lease.owner, ""
        with contextlib.suppress(OSError):
            touched = self._path.stat().st_mtime_ns
            token = owner.token or "" if owner else ""
            if token and self._seen[0] == token and self._seen[1] != touched:
                self._renewing = token
            self._seen = token, touched
        if owner is None or not token:
            return "undecided"
        is_here = owner.hostname == _here() and not _is_zombie(owner.pid)
        return "alive" if is_here or token == self._renewing else "undecided"

    @staticmethod
    def _name(owner: OwnerRecord | None) -> str:
        if owner is None:
            return "a process that cannot be read"
        return f"process {owner.pid} on {owner.hostname.partition('?')[0]}"

    def _say_waiting(self, state: State) -> None:
        whose = self._name(self._lease.owner)
        if state == "alive":
            text = f"waiting for {whose}, which uses {self._of}"
        else:
            text = (
                f"{self._of} belongs to {whose}: waiting up to {LEASE:.0f} s to see whether it is "
                "still alive"
            )
        if text not in self._said:
            self._said.add(text)
            log.info(text)

    def _cannot_write(self, problem: OSError) -> UserError:
        if isinstance(problem, FileExistsError):
            why = f": {problem.filename} is a file; name a folder."
        else:
            why = f" cannot be written: {problem.strerror}; choose another."
        return UserError(f"{self._flag} {self._of}{why}")

    def _compromised(self, loss: LeaseCompromise) -> None:
        """Called by the heartbeat."""
        if loss.reason == "refresh-failed":  # the owner is still the owner until another takes over
            log.warning(
                f"the lock {self._path} could not be renewed for {LEASE:.0f} s ({loss.error}); "
                f"another process may take {self._of} over"
            )
        else:
            self._lose()

    def check(self) -> None:
        """Makes sure that this process still owns the output; reads one small file.

        Raises:
          UserError: it does not.
        """
        if os.getpid() != self._process:  # a fork
            return
        if not self._path.parent.is_dir():
            raise UserError(
                f"{self._of} was renamed or removed while this process wrote to it. Repeat the "
                f"command with {self._flag} set to its new place."
            )
        owner = self._lease.owner
        if owner is None or owner.token != self._lease.token:
            self._lose()
        if self._problem is not None:
            raise self._problem

    def _lose(self) -> None:
        if self._problem is not None:
            return
        owner = self._lease.owner
        if owner is None:
            try:
                self._path.stat()
            except FileNotFoundError:
                pass
            except OSError:  # a disk that is away; the owner is still the owner
                return
        self._problem = UserError(
            f"{self._of} belongs to {self._name(owner) if owner else 'nobody'} now: this process "
            f"stood still for too long, or {self._path} was removed; this process writes nothing "
            "more."
        )
        if self._on_loss is not None:
            self._on_loss(self._problem)

    def release(self) -> None:
        """Gives the lock back, if this process still has it."""
        if self not in _held or os.getpid() != self._process:
            return
        _held.remove(self)
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
    """Calls `Lock.check` of every lock that this process holds."""
    for lock in list(_held):
        lock.check()
