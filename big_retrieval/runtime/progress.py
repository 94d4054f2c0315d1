"""Progress bars of long work on standard error, by tqdm."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

DELAY = 2.0  # seconds of work before a bar appears
INTERVAL = 0.5  # seconds between two states of a bar on a terminal
LOG_INTERVAL = 10.0  # seconds between two lines in a log


def progress_bar(
    unit: str,
    total: int | None = None,
    *,
    shown: bool | None = True,
    log_interval: float = LOG_INTERVAL,
) -> "tqdm[Any]":
    """Returns a bar, which appears if the work takes longer than `DELAY`.

    If standard error is not a terminal, the bar is a line every `log_interval` seconds.

    Args:
      unit: plural of the counted things, such as "documents"; "bytes" are shown as MB or GB.
      total: expected number of things; None if unknown.
      shown: False hides the bar; None shows it on terminals only.
    """
    from tqdm import tqdm  # it takes long to import

    is_terminal, is_bytes = sys.stderr.isatty(), unit == "bytes"
    return tqdm(
        total=total,
        unit="B" if is_bytes else f" {unit}",
        unit_scale=is_bytes,
        disable=not (is_terminal if shown is None else shown),
        file=sys.stderr if is_terminal else _LogStream(sys.stderr),
        delay=DELAY,
        mininterval=INTERVAL if is_terminal else log_interval,
        miniters=0,  # without it, tqdm skips states of slow work and starts a thread
        dynamic_ncols=is_terminal,
        ncols=None if is_terminal else 0,  # 0 prints the numbers without a drawn bar
        position=0,
    )


class _LogStream:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=self._stream)

    def flush(self) -> None:
        self._stream.flush()
