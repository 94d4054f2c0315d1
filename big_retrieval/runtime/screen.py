"""Standard output and error that do not end a command: closed pipes, full disks, encodings.

`guard` replaces both streams before anything is printed, also for libraries:

* A closed pipe (`| head -3`) is replaced by the null device, and the command continues.
* Characters that the encoding lacks are printed as `\\xe9`.
* On standard output, control characters of data are printed as `\\x1b`.
* If the output only reports progress, text that cannot be written (full disk) is dropped. If it
  is the result, a full disk is an error: a partial result must not look complete.
"""

import contextlib
import errno
import io
import os
import re
import select
import sys
from typing import Any, TextIO

GONE = (errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN)
# Not matched: tabs, line ends, and a carriage return at the start or end, which overwrites a line.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|(?<!^)\r(?!\n|\Z)")
_closed: set[int] = set()  # file descriptors whose reader has gone away


class _Guarded(io.FileIO):
    """A file descriptor whose reader may go away; `log` drops text that cannot be written."""

    def __init__(self, descriptor: int, log: bool):
        super().__init__(descriptor, "wb", closefd=False)
        self._log, self._has_warned = log, False

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while remaining:
                written = super().write(remaining)
                if written is None:  # another program has set the stream not to block
                    select.select((), (self,), ())
                remaining = remaining[written or 0 :]
        except OSError as error:
            if error.errno in GONE:
                _closed.add(self.fileno())
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())  # for C++ libraries and child processes, too
                os.close(null)
            elif not self._log:
                error.filename = "/dev/stdout" if self.fileno() == 1 else "/dev/stderr"
                raise
            self._warn(f"the output cannot be written ({error.strerror})")
        return size

    def _warn(self, text: str) -> None:
        if self._has_warned or not self._log or self.fileno() != 1:
            return
        self._has_warned = True
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"warning: {text}; the command continues", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Returns a text with control characters, which terminals obey, as `\\x1b`."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class _Visible(io.TextIOWrapper):
    def write(self, text: str) -> int:
        super().write(visible(text))
        return len(text)


def guard(*, log: bool) -> None:
    """Guards standard output and error, and accepts any bytes on standard input.

    Streams that a notebook or a test has replaced stay unchanged.

    Args:
      log: True if the output only reports progress, so that lines may be lost.
    """
    _open_missing()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _guarded(stream, 1 if name == "stdout" else 2, log))
    if sys.stdin is not None and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def closed() -> bool:
    """Returns True if the reader of standard output is known to have gone away."""
    return 1 in _closed


def put(text: str, stream: TextIO | None = None) -> None:
    """Prints a line of a log to a stream, standard output by default; never raises."""
    stream = sys.stdout if stream is None else stream
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _guarded(stream: Any, descriptor: int, log: bool) -> TextIO:
    """Returns a stream over a guarded file descriptor, with the properties of `stream` if any."""
    raw: Any = _Guarded(descriptor, log)
    through = bool(getattr(stream, "write_through", False))
    # Progress bars of libraries, on standard error, control the terminal.
    wrapper = _Visible if descriptor == 1 else io.TextIOWrapper
    return wrapper(
        raw if through else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or bool(getattr(stream, "line_buffering", False)),
        write_through=through,
    )


def _open_missing() -> None:
    """Opens the null device for closed standard streams (`>&-`).

    Otherwise, the next opened file, such as a checkpoint, would get the stream's descriptor, and
    printed text would go into this file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
