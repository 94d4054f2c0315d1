"""SIGTERM as an exception."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """A context that raises SystemExit on SIGTERM, so that everything is cleaned up."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def handle(signal_number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            sys.exit(128 + signal_number)
        signal.signal(signal_number, signal.SIG_DFL)  # a fork, which has nothing to clean up
        signal.raise_signal(signal_number)

    # If the signal arrives in a callback of Python's garbage collector (jax has one), Python drops
    # the exception and continues. The hook then sends the signal again.
    before = sys.unraisablehook

    def on_dropped(unraisable: Any) -> None:
        if unraisable.exc_type is not SystemExit or os.getpid() != process:
            before(unraisable)
            return
        again = threading.Timer(0.02, os.kill, (process, signal.SIGTERM))
        again.daemon = True
        again.start()

    signal.signal(signal.SIGTERM, handle)
    sys.unraisablehook = on_dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
