"""Progress of long work, such as on many documents, shown on standard error."""

import sys
import time
from typing import TextIO

from big_retrieval.runtime.clock import duration

EVERY = 2.0  # seconds between lines


class ProgressCounter:
    """Counts, and says how fast it goes and how long it will take.

    Args:
      what: the name of what is counted, such as "documents".
      total: how many there are; None if nobody knows.
      stream: None: standard error. On a terminal, one line is overwritten again and again.

    As a context manager it writes the last line only if it wrote others.
    """

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None):
        self._what, self._total, self._stream = what, total, stream or sys.stderr
        self._started = self._said = time.monotonic()
        self._done = 0
        self._shown, self._ends_if_said = True, True

    @classmethod
    def of_call(
        cls, what: str, total: int, wanted: bool | None, stream: TextIO | None = None
    ) -> "ProgressCounter":
        """The counter of a function that a program calls, to be used as a context manager.

        Args:
          what: as of the class.
          total: as of the class.
          wanted: False: it never writes; None: only on a terminal, if the work takes long.
          stream: as of the class.
        """
        counter = cls(what, total, stream)
        counter._shown = counter._stream.isatty() if wanted is None else wanted
        counter._ends_if_said = wanted is None
        return counter

    def __enter__(self) -> "ProgressCounter":
        return self

    def __exit__(self, problem: object, *rest: object) -> None:
        if problem is None and (self._said > self._started or not self._ends_if_said):
            self.close()

    def add(self, count: int, without: int = 0) -> None:
        """Counts, and writes a line now and then.

        Args:
          count: how many more are done.
          without: how many were skipped so far; they no longer count in the total.
        """
        self._done += count
        if time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            rate = self.rate()
            if self._total is None:
                self._write(f"{self._done:,} {self._what}  {rate:,.0f}/s")
                return
            total = self._total - without
            left = duration((total - self._done) / rate) if rate else "?"
            self._write(f"{self._done:,} of {total:,} {self._what}  {rate:,.0f}/s  eta {left}")

    def rate(self) -> float:
        """Per second, since the start."""
        return self._done / max(time.monotonic() - self._started, 1e-9)

    def close(self) -> None:
        """Writes the last line."""
        took = duration(time.monotonic() - self._started)
        self._write(f"{self._done:,} {self._what} in {took}  {self.rate():,.0f}/s", last=True)

    def _write(self, text: str, last: bool = False) -> None:
        if not self._shown:
            return
        terminal = self._stream.isatty()
        start, end = ("\r", "\n" if last else "") if terminal else ("", "\n")
        self._stream.write(f"{start}{text:<78}{end}" if terminal else f"{text}{end}")
        self._stream.flush()
