"""Standard output and error that end no command: closed pipes, full disks, narrow encodings.

`guard` replaces both streams once, before anything is printed, so that it covers every `print`,
also in libraries. On a guarded stream

* a closed pipe (`| head -3`) is replaced by the null device, and the command continues;
* characters that the terminal's encoding lacks come as `\\xe9` instead of an exception;
* on standard output, control characters of ids, captions and file names come as `\\x1b`, since they
  could write over other lines (`messages` does the same for messages);
* in a command whose output only reports progress, such as training, text that cannot be written (a
  full disk under a log file, a terminal that is gone) is dropped.

In a command whose output is its result, a full disk stays an error: half a result must not look
like a whole one.
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
# All but tabs, line ends, and the carriage return that begins or ends a line that is written over.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|(?<!^)\r(?!\n|\Z)")
_closed: set[int] = set()  # file descriptors whose reader has gone away


class _Guarded(io.FileIO):
    """A file descriptor whose reader may go away.

    Args:
      number: the file descriptor; it stays open when this object is closed.
      log: True drops text that cannot be written.
    """

    def __init__(self, number: int, log: bool):
        super().__init__(number, "wb", closefd=False)
        self._log, self._has_warned = log, False

    def write(self, data: Any) -> int:
        """Writes all bytes, or drops what cannot be written of them."""
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
        """Reports once on standard error that the log on standard output is lost."""
        if self._has_warned or not self._log or self.fileno() != 1:
            return
        self._has_warned = True
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"warning: {text}; the command goes on without it", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Returns a text whose control characters are written out, as `\\x1b`: terminals obey them."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class _Visible(io.TextIOWrapper):
    """A stream of `visible` text."""

    def write(self, text: str) -> int:
        super().write(visible(text))
        return len(text)


def guard(*, log: bool) -> None:
    """Guards standard output and error, and reads standard input whatever its bytes.

    Streams that somebody else has replaced (a notebook, a test) stay as they are.

    Args:
      log: whether the output only tells what the command does, so that a lost line is no error.
    """
    _open_missing()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _guarded(stream, 1 if name == "stdout" else 2, log))
    if sys.stdin is not None and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def closed() -> bool:
    """Whether the reader of standard output has gone away, as far as is known."""
    return 1 in _closed


def put(text: str, stream: TextIO | None = None) -> None:
    """Prints a line of a log, wherever it is called from: nothing that happens ends the caller.

    Args:
      text: the line.
      stream: standard output unless given.
    """
    stream = sys.stdout if stream is None else stream
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _guarded(stream: Any, number: int, log: bool) -> TextIO:
    """The same stream over a guarded file descriptor; stream is None where it was closed."""
    raw: Any = _Guarded(number, log)
    through = bool(getattr(stream, "write_through", False))
    # Progress bars of libraries control the terminal; they are on standard error.
    kind = _Visible if number == 1 else io.TextIOWrapper
    return kind(
        raw if through else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or bool(getattr(stream, "line_buffering", False)),
        write_through=through,
    )


def _open_missing() -> None:
    """Opens the null device where a standard stream was closed (`>&-`).

    Otherwise the next file that is opened, a checkpoint perhaps, gets the number of the stream and
    everything that a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
