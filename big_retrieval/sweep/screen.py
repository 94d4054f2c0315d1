"""What a sweep shows while a run is under way: one line, from the last lines of the run's log."""

import logging
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from big_retrieval.runtime.clock import duration, seconds_of

log = logging.getLogger(__name__)
STEP = re.compile(r"step +\d+/\d+ .*eta (\S+)")
QUIET = 60.0  # seconds between two lines where the output is no terminal
TAIL = 16_384  # bytes at the end of a log that are looked at


def last_lines(log: Path, start: int) -> list[str]:
    """The last lines that are not empty of a log, from a byte on."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - TAIL))
        text = file.read().decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


class Screen:
    """Lines for the user: messages that stay, and on a terminal one line that is overwritten.

    Without messages of the level info (`--verbosity=warning`) only failures are shown.
    """

    def __init__(self) -> None:
        """Starts with no line on the screen."""
        self._terminal = sys.stdout.isatty() and log.isEnabledFor(logging.INFO)
        self._shown = 0  # columns of the line that is to be overwritten
        self._last = ("", 0.0)  # what a quiet output was told, and when
        self._known: list[float] = []  # seconds of finished runs

    def finished(self, seconds: object) -> None:
        """Notes how long a run took, for the time that is left."""
        if isinstance(seconds, int | float):
            self._known.append(float(seconds))

    def log(self, text: str, level: int = logging.INFO) -> None:
        """A line that stays.

        Args:
          text: the line, or lines.
          level: of the message.
        """
        print("\r" + " " * self._shown + "\r" if self._shown else "", end="", flush=True)
        log.log(level, text)
        self._shown, self._last = 0, ("", time.monotonic())

    def begin(self, text: str) -> None:
        """What is said when a run begins; on a terminal its progress follows at once."""
        if not self._terminal:
            self.log(text)

    def progress(self, head: str, lines: Sequence[str], elapsed: float, after: int) -> None:
        """Shows how far a run is: at once on a terminal, else once a minute.

        Args:
          head: place and name of the run.
          lines: the last lines of its log.
          elapsed: seconds since it was started.
          after: runs that are still to come.
        """
        text = f"{head}  {lines[-1] if lines else 'starting'}"
        left = self.left(lines, elapsed, after)
        text += f"  sweep {duration(left)}" if left is not None else ""
        if self._terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            print("\r" + text.ljust(self._shown), end="", flush=True)
            self._shown = len(text)
        elif text != self._last[0] and time.monotonic() - self._last[1] >= QUIET:
            self.log(text)
            self._last = (text, time.monotonic())

    def left(self, lines: Sequence[str], elapsed: float, after: int) -> float | None:
        """Seconds until all runs should be finished, or None while nothing is known.

        Runs that have not begun are taken to be as long as those that are finished, or as this one.
        Arguments as in `progress`.
        """
        etas = [match[1] for line in lines if (match := STEP.search(line))]
        eta = seconds_of(etas[-1]) if etas else None
        known = self._known or ([elapsed + eta] if eta is not None else [])
        if not known:
            return None
        mean = sum(known) / len(known)
        now = eta if eta is not None else max(0.0, mean - elapsed)
        return now + after * mean
