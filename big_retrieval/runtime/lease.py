"""A lease: a small file that says which process owns an output, on any file system.

File systems of clusters (NFS, Lustre, mounted buckets) often have no working `flock`. A lease needs
nothing but files that are created exclusively, renamed, and read again. The file holds who the
owner is, and a counter that the owner raises every few seconds. This module reads and changes the
file; `big_retrieval.runtime.locks` decides when, and talks to the user.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

SIZE = 1024  # bytes; constant, so that renewing the file in place never makes it shorter
COMMAND = 300  # characters of the command line that are kept
LEASE = 60.0  # seconds without a heartbeat after which the process of another machine is gone
LOOK = 1.0  # seconds between two looks at another's lease
Liveness = Literal["alive", "gone", "unknown"]
State = Literal["free", "alive", "gone", "undecided"]


@dataclass(frozen=True)
class Owner:
    """The process that a lease belongs to.

    Attributes:
      token: random; names this lease among all that there ever were.
      host: name of the machine, for the user.
      boot: id of the machine's current boot; "": unknown, as on macOS.
      namespace: namespace of process ids; each container has its own.
      pid: process id.
      began: start time of the process by the kernel's clock, which tells the process from a later
        one with the same process id.
      command: how it was started.
      since: when it took the lease, in seconds since 1970.
      heartbeats: how often it has renewed the lease.
      time: when it did last, in seconds since 1970.
    """

    token: str
    host: str
    boot: str
    namespace: str
    pid: int
    began: str
    command: str
    since: float
    heartbeats: int = 0
    time: float = 0.0

    def encode(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self)).encode().ljust(SIZE - 1) + b"\n"

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        ago = max(0.0, time.time() - self.time)
        return f"process {self.pid} on {self.host} (since {since}, last heartbeat {ago:.0f} s ago)"


def parse(content: bytes) -> Owner | None:
    """The owner that a lease file names; None if the file is damaged or half-written."""
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def this_process() -> Owner:
    """This process as the owner of a new lease."""
    now = time.time()
    command = "".join(c if c.isascii() and c.isprintable() else "?" for c in " ".join(sys.argv))
    return Owner(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        boot=_content("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=os.getpid(),
        began=_status(os.getpid())[1],
        command=command[:COMMAND],
        since=now,
        time=now,
    )


def liveness(owner: Owner | None) -> Liveness:
    """Whether an owner's process still runs, as far as this machine can know at once.

    The kernel knows whether a process of this machine runs. Processes of other machines or
    containers are "unknown", and so is an owner whose lease cannot be read.
    """
    if owner is None or not owner.boot or not owner.began:
        return "unknown"
    if (owner.boot, owner.namespace) != (
        _content("/proc/sys/kernel/random/boot_id"),
        _namespace(),
    ):
        return "unknown"
    state, began = _status(owner.pid)
    if state:
        return "alive" if began == owner.began and state not in "ZXx" else "gone"
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        pass
    return "unknown"  # the process exists, but /proc hides the processes of other users


def _status(pid: int) -> tuple[str, str]:
    """State and start of a process by the kernel (Linux); empty where there is none to be seen."""
    # The name of the command, in brackets, may hold anything, blanks and brackets too. Behind it
    # stand the fields from 3 on: 3 is the state, 22 the start.
    fields = _content(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _content(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class Observer:
    """Finds out whether the owner of a lock is alive."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Looks at nothing yet.

        Args:
          path: the lock.
          clock: seconds; only differences count.
        """
        self.path, self._clock = path, clock
        self.content: bytes | None = None  # that was seen last
        self.unchanged = 0.0  # seconds for which it has been the same
        self._looked = 0.0
        self._renewing = ""  # token of an owner whose heartbeat was seen

    @property
    def owner(self) -> Owner | None:
        """Who the lock belonged to at the last look, if its file could be read."""
        return None if self.content is None else parse(self.content)

    def look(self) -> State:
        """What is known about the owner now; after "undecided", look again later."""
        now, before, known = self._clock(), self.content, self.owner
        self.content = _read(self.path)
        if self.content is None:
            return "free"
        passed, self._looked = now - self._looked, now
        if before == self.content:
            # A pause of this process or of the file system tells nothing about the owner.
            self.unchanged += min(passed, 2 * LOOK)
        else:
            self.unchanged = 0.0
        owner = self.owner
        state = liveness(owner)
        if state != "unknown":
            return state
        if owner and known and owner.token == known.token and before != self.content:
            self._renewing = owner.token
        if self.unchanged >= LEASE:
            return "gone"
        return "alive" if owner and owner.token == self._renewing else "undecided"


class Lease:
    """The lease of this process on one output.

    Attributes:
      path: the file.
      owner: this process.
    """

    def __init__(self, path: Path) -> None:
        """Touches nothing yet."""
        self.path, self.owner = path, this_process()

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{self.owner.token}")

    def create(self) -> bool:
        """Creates the file; False where there is one.

        Raises:
          OSError: the folder cannot be written, or the disk is full.
        """
        content = self.owner.encode()
        if self.path.exists():  # the common case, in which nothing needs to be written
            return False
        try:
            self._aside.write_bytes(content)
            # A link makes the whole file appear under its name at once.
            os.link(self._aside, self.path)
        except FileExistsError:
            return self.is_ours() is True  # NFS may say so of a link that was made all the same
        except OSError:
            return _create_exclusively(self.path, content)  # no links, as on FAT and in buckets
        finally:
            with contextlib.suppress(OSError):
                self._aside.unlink()
        return True

    def read(self) -> bytes | None:
        """The content of the file; None if there is no file."""
        return _read(self.path)

    def is_ours(self) -> bool | None:
        """Whether the file holds this lease; None where there is no file."""
        content = self.read()
        if content is None:
            return None
        found = parse(content)
        return found is not None and found.token == self.owner.token

    def renew(self) -> bool | None:
        """Raises the counter in the file; answers as `is_ours`, and changes no other's lease.

        The file is written in place: renaming a new one over it would overwrite the lease of a
        process that took it over in the same moment.
        """
        renewed = replace(self.owner, heartbeats=self.owner.heartbeats + 1, time=time.time())
        try:
            with self.path.open("r+b") as file:
                found = parse(file.read())
                if found is None or found.token != self.owner.token:
                    return False
                file.seek(0)
                file.write(renewed.encode())
        except FileNotFoundError:
            return None
        self.owner = renewed
        return True

    def remove(self, path: Path, content: bytes) -> bool:
        """Removes a lease if it still holds `content`; says whether it did.

        The file is renamed first, and looked at again: its owner may have renewed it just now.
        """
        try:
            if path.read_bytes() != content:
                return False
            path.rename(self._aside)
        except FileNotFoundError:
            return False
        found = self._aside.read_bytes()
        if found != content:  # it goes back, unless there is a new one already
            try:
                os.link(self._aside, path)
            except FileExistsError:
                pass
            except OSError:
                _create_exclusively(path, found)
        self._aside.unlink()
        return found == content

    def release(self) -> None:
        """Removes the file if it holds this lease."""
        content = self.read()
        found = None if content is None else parse(content)
        if content is not None and found is not None and found.token == self.owner.token:
            self.remove(self.path, content)


def _read(path: Path) -> bytes | None:
    """The content of a lease; None if there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno == errno.ESTALE:  # NFS: another machine removed the file meanwhile
            return None
        raise


def _create_exclusively(path: Path, content: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:  # a full disk takes the name but not the content
        # A bucket may report only now that another machine was quicker; that lease must stay.
        if parse(_read(path) or b"") is None:
            path.unlink(missing_ok=True)
        raise
    return True
