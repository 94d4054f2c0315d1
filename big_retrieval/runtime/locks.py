"""Locks: an output folder or file has one owner at a time.

    with Lock(in_folder(folder), output=folder, flag="--out"):
        ...  # only this process writes into the folder

A second process ends with an error message, or waits. It takes over the lock of a process that is
gone. The kernel of this machine reports if a local process is gone. A remote process counts as gone
if its lease (`runtime/lease.py`) does not change while another process waits for `LEASE` seconds.
An owner that was suspended for longer notices the loss before its next heartbeat, or in `check`,
and must not write any more.
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
TICK = 1.0  # maximum seconds until an owner notices that it was suspended
HELD = "held"
# A clock that also runs while the machine is suspended (Linux only), else the monotonic clock.
_AWAKE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
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


def in_use(output: Path | str, owner: Owner | str, flag: str) -> str:
    """Returns the error message for a second process; see `Lock`."""
    return f"{output} is in use by {owner}. Wait for it with --wait, or choose another {flag}."


class Lock:
    """Exclusive right to write to one output, which this process has inside of this context.

    Args:
      path: the lock's file, see `in_folder` and `beside`.
      output: the output, as the user named it.
      flag: flag that names the output.
      wait: wait for another owner instead of raising an error.
      lost: called, in any thread, after another process took the lock over. If it returns or is
        missing, `check` raises the error.
      look: seconds between two looks at another process's lock.
    """

    def __init__(
        self,
        path: Path,
        *,
        output: Path | str,
        flag: str = "--out",
        wait: bool = False,
        lost: Callable[[UserError], object] | None = None,
        look: float = LOOK,
    ) -> None:
        self._path, self._output, self._flag = path, output, flag
        self._wait, self._on_loss, self._pause = wait, lost, look
        self._lease, self._observer = Lease(path), Observer(path)
        self._created_folders: list[Path] = []  # for the lock, the innermost first
        self._waited = 0.0  # seconds
        self._logged: set[str] = set()
        self._rights: dict[Path, Observer] = {}  # rights of other processes to remove a stale lock
        self._guard = threading.RLock()  # the heartbeat, checks and the release exclude each other
        self._closed = threading.Event()
        self._renewed = 0.0
        self._loss: UserError | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, broadcast: Callable[[str], str] = lambda word: word) -> None:
        """Takes the lock, at once or after waiting; raises a UserError if another process has it.

        Args:
          broadcast: sends the outcome of each attempt to the other processes of a run, which call
            `follow`.
        """
        while True:
            try:
                word = self._attempt()
            except OSError as error:
                word = self._cannot_write(error)
            if word == HELD:  # before the broadcast, which may take longer than a lease
                self._renewed = time.clock_gettime(_AWAKE)
                threading.Thread(target=self._keep, daemon=True).start()
                _held.append(self)
            word = broadcast(word)
            if word == HELD:
                return
            if word:
                self._remove_folders()
                raise UserError(word)
            time.sleep(self._pause)
            self._waited += self._pause

    def _attempt(self) -> str:
        """Returns `HELD`, "" to try again, or an error message."""
        for parent in (self._path.parent, *self._path.parent.parents):
            if parent.exists():
                break
            self._created_folders.append(parent)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        last_owner = None
        while not self._lease.create():
            state, owner = self._observer.look(), self._observer.owner
            whose = owner or "a process that cannot be read"
            if state == "gone" and self._clear(self._observer):
                last_owner = whose
            elif state == "alive" and not self._wait:
                return in_use(self._output, whose, self._flag)
            elif state == "alive":
                if self._waited >= LOOK:  # shorter waits, as for tables of a sweep, are not logged
                    self._log_once(f"waiting for {whose}, which uses {self._output}", owner)
                return ""
            elif state == "undecided":
                if self._observer.unchanged:
                    action = f"waiting up to {LEASE:.0f} s to see if it is alive"
                    self._log_once(f"{self._output} belongs to {whose}: {action}", owner)
                return ""
        if last_owner:
            log.info(f"taking over {self._output} from {last_owner}, which is gone")
        return HELD

    def _clear(self, stale: Observer) -> bool:
        """Removes a stale lock; returns False if another process does it or has done it."""
        content = stale.content or b""
        # Several processes may find a lock stale, but only one may remove it: the others would
        # remove the lock of the next owner. The right to remove it is another lease, named after
        # the content of the stale lock.
        name = hashlib.sha256(content).hexdigest()[:12]
        removal = Lease(stale.path.with_name(f"{stale.path.name}.{name}"))
        if removal.create():
            try:
                return self._lease.remove(stale.path, content)
            finally:
                removal.release()
        other = self._rights.setdefault(removal.path, Observer(removal.path))
        if other.look() == "gone":  # it was killed in the middle
            self._clear(other)
        else:
            time.sleep(self._pause / 100)
        return False

    def _log_once(self, text: str, owner: Owner | None, level: int = logging.INFO) -> None:
        key = f"{text.split()[0]} {owner and owner.token}"
        if key not in self._logged:
            self._logged.add(key)
            log.log(level, text)

    def _cannot_write(self, error: OSError) -> str:
        if isinstance(error, FileExistsError):
            return f"{self._flag} {self._output}: {error.filename} is a file. Use a folder."
        return f"Cannot write {self._flag} {self._output}: {error.strerror}. Choose another."

    def _keep(self) -> None:
        while not self._closed.wait(TICK):
            if time.clock_gettime(_AWAKE) - self._renewed >= HEARTBEAT:
                self._verify(renew=True)

    def check(self) -> None:
        """Raises a UserError if this process lost the output; reads one small file."""
        self._verify(renew=False)
        if self._loss is not None:
            raise self._loss
        if not self._path.parent.is_dir():
            raise UserError(
                f"{self._output} was renamed or removed while this process wrote to it. Repeat the "
                f"command with {self._flag} set to its new place."
            )

    def _verify(self, *, renew: bool) -> None:
        """Notices a lost lock, and renews the lease if `renew`."""
        if os.getpid() != self._lease.owner.pid:  # a fork, where the guard may stay locked
            return
        with self._guard:
            if self._closed.is_set():
                return
            now = time.clock_gettime(_AWAKE)
            try:
                ours = self._lease.renew() if renew else self._lease.is_ours()
                # No process takes over such a young lease: the file was deleted by mistake.
                if ours is None and now - self._renewed < LEASE / 2:
                    ours = self._lease.create()
            except OSError as error:  # a full or missing disk does not end the ownership
                if renew and now - self._renewed >= LEASE / 2:
                    text = (
                        f"{self._path} was not renewed for {LEASE / 2:.0f} s ({error.strerror}); "
                        f"another machine may take {self._output} over"
                    )
                    self._log_once(text, self._lease.owner, logging.WARNING)
                return
            if ours:
                if renew:
                    self._renewed = now
                return
            self._closed.set()
            owner = lease.parse(lease.read_lease(self._path))
            self._loss = UserError(
                f"{self._output} belongs to {owner or 'nobody'} now: this process was suspended "
                f"for too long, or {self._path} was removed. This process writes nothing more."
            )
        if self._on_loss is not None:
            self._on_loss(self._loss)

    def release(self) -> None:
        """Removes the lock if this process still owns it."""
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
            self._remove_folders()

    def _remove_folders(self) -> None:
        """Removes the folders that were created for the lock and are still empty."""
        with contextlib.suppress(OSError):
            for folder in self._created_folders:
                folder.rmdir()


def follow(broadcast: Callable[[str], str]) -> None:
    """Waits for the first process of a run; raises a UserError if another run has the lock."""
    while not (word := broadcast("")):
        pass
    if word != HELD:
        raise UserError(word)


def check() -> None:
    """Calls `Lock.check` of every lock that this process holds."""
    for lock in list(_held):
        lock.check()
