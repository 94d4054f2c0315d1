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
    """A context in which SIGTERM is an exception, where else nothing would be cleaned up."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            sys.exit(128 + number)
        signal.signal(number, signal.SIG_DFL)  # a fork, which has nothing to clean up
        signal.raise_signal(number)

    # Python drops an exception that a signal raises within a callback of its garbage collector, as
    # jax has one, and would go on as if nothing had been asked. The signal then comes once more.
    before = sys.unraisablehook

    def dropped(problem: Any) -> None:
        if problem.exc_type is not SystemExit or os.getpid() != process:
            before(problem)
            return
        again = threading.Timer(0.02, os.kill, (process, signal.SIGTERM))
        again.daemon = True
        again.start()

    signal.signal(signal.SIGTERM, handle)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
