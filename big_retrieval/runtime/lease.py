"""A lease: a small file that names the process that owns an output, on any file system.

File systems of clusters (NFS, Lustre, mounted buckets) often have no working `flock`. A lease needs
only exclusive creation, renaming and reading of files. The file contains the owner and a counter
that the owner increments every few seconds. This module reads and changes the file;
`big_retrieval.runtime.locks` decides when, and writes the messages.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

SIZE = 512  # bytes; constant, so that renewing the file in place never makes it shorter
LEASE = 60.0  # seconds without a heartbeat after which a remote process counts as gone
LOOK = 1.0  # seconds between two checks of another process's lease
Liveness = Literal["alive", "gone", "unknown"]
State = Literal["free", "alive", "gone", "undecided"]


@dataclass(frozen=True)
class Owner:
    """The process that owns a lease."""

    token: str  # random name of this lease
    host: str  # name of the machine, for messages
    boot: str  # id of the machine's current boot; "" if unknown, as on macOS
    namespace: str  # namespace of process ids; each container has its own
    pid: int
    began: str  # start of the process by the kernel's clock. A later process can have the same pid
    since: float  # time at which it took the lease, in seconds since 1970
    heartbeats: int = 0  # number of renewals
    time: float = 0.0  # time of the last renewal, in seconds since 1970

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps(asdict(self)).encode().ljust(SIZE - 1) + b"\n"

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        ago = max(0.0, time.time() - self.time)
        return f"process {self.pid} on {self.host} (since {since}, last heartbeat {ago:.0f} s ago)"


def read_lease(path: Path) -> bytes | None:
    """Returns the content of a lease; None if there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # NFS: another machine has just removed the file
            return None
        raise


def parse(content: bytes | None) -> Owner | None:
    """Returns the owner of a lease; None if the file is missing, damaged or half-written."""
    try:
        return None if content is None else Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def this_process() -> Owner:
    """Returns this process as the owner of a new lease."""
    pid, now = os.getpid(), time.time()
    host, began = socket.gethostname(), process_status(pid)[1]
    return Owner(secrets.token_hex(8), host, *_machine(), pid, began, since=now, time=now)


def liveness(owner: Owner | None) -> Liveness:
    """Returns the state of an owner's process, by the kernel of this machine.

    It is "unknown" for processes of other machines or containers, and for a damaged lease (None).
    """
    if owner is None or not owner.boot or not owner.began:
        return "unknown"
    if (owner.boot, owner.namespace) != _machine():
        return "unknown"
    state, began = process_status(owner.pid)
    if state:
        return "alive" if began == owner.began and state not in "ZXx" else "gone"
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        pass
    return "unknown"  # the process exists, but /proc hides the processes of other users


def process_status(pid: int) -> tuple[str, str]:
    """Returns state, such as "T", and start time of a process by Linux's kernel, or ("", "")."""
    # The command's name, in parentheses, may contain any character. After it, the fields begin with
    # number 3, the state; number 22 is the start time.
    fields = _content(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _content(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _machine() -> tuple[str, str]:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return _content("/proc/sys/kernel/random/boot_id"), namespace


class Observer:
    """Determines if the owner of a lock is alive."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock  # only differences of the clock count
        self.content: bytes | None = None  # content of the lease at the last look
        self.unchanged = 0.0  # seconds since the content changed
        self._looked = 0.0
        self._renewing = ""  # token of an owner whose heartbeat was seen

    @property
    def owner(self) -> Owner | None:
        """Owner at the last look; None without a readable file."""
        return parse(self.content)

    def look(self) -> State:
        """Reads the lease and returns the state of its owner; call again later if "undecided"."""
        now, before, last_owner = self._clock(), self.content, self.owner
        self.content = read_lease(self.path)
        if self.content is None:
            return "free"
        passed, self._looked = now - self._looked, now
        if before == self.content:
            # A pause of this process or of the file system proves nothing about the owner.
            self.unchanged += min(passed, 2 * LOOK)
        else:
            self.unchanged = 0.0
        owner = self.owner
        state = liveness(owner)
        if state != "unknown":
            return state
        if owner and last_owner and owner.token == last_owner.token and before != self.content:
            self._renewing = owner.token
        if self.unchanged >= LEASE:
            return "gone"
        return "alive" if owner and owner.token == self._renewing else "undecided"


class Lease:
    """The lease of this process on one output."""

    def __init__(self, path: Path) -> None:
        self.path, self.owner = path, this_process()
        self._aside = path.with_name(f"{path.name}.{self.owner.token}")

    def create(self) -> bool:
        """Creates the file; returns False if another lease exists."""
        content = self.owner.encode()
        if self.path.exists():  # the common case, in which nothing needs to be written
            return False
        try:
            self._aside.write_bytes(content)
            # A link makes the whole file appear under its name at once.
            os.link(self._aside, self.path)
        except FileExistsError:
            return self.is_ours() is True  # NFS may report this after it made the link
        except OSError:
            return _create_exclusively(self.path, content)  # FAT and buckets have no links
        finally:
            with contextlib.suppress(OSError):
                self._aside.unlink()
        return True

    def is_ours(self) -> bool | None:
        """Returns True if the file holds this lease; None if there is no file."""
        content = read_lease(self.path)
        return None if content is None else self._is_ours(content)

    def _is_ours(self, content: bytes) -> bool:
        owner = parse(content)
        return owner is not None and owner.token == self.owner.token

    def renew(self) -> bool | None:
        """Increments the counter in the file if it holds this lease; returns `is_ours`.

        The file is written in place: renaming a new file over it could overwrite the lease of a
        process that has just taken the output over.
        """
        renewed = replace(self.owner, heartbeats=self.owner.heartbeats + 1, time=time.time())
        try:
            with self.path.open("r+b") as file:
                if not self._is_ours(file.read()):
                    return False
                file.seek(0)
                file.write(renewed.encode())
        except FileNotFoundError:
            return None
        self.owner = renewed
        return True

    def remove(self, path: Path, content: bytes) -> bool:
        """Removes a lease and returns True if it still holds `content`.

        The file is renamed first, and read again: its owner may have renewed it just now.
        """
        try:
            if path.read_bytes() != content:
                return False
            path.rename(self._aside)
        except FileNotFoundError:
            return False
        current = self._aside.read_bytes()
        if current != content:  # changed: put it back, unless a new lease exists
            try:
                os.link(self._aside, path)
            except FileExistsError:
                pass
            except OSError:
                _create_exclusively(path, current)
        self._aside.unlink()
        return current == content

    def release(self) -> None:
        """Removes the file if it contains this lease."""
        content = read_lease(self.path)
        if content is not None and self._is_ours(content):
            self.remove(self.path, content)


def _create_exclusively(path: Path, content: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:  # a full disk creates the name without the content
        # A bucket may report only now that another machine has created the file, which must stay.
        if parse(read_lease(path)) is None:
            path.unlink(missing_ok=True)
        raise
    return True
