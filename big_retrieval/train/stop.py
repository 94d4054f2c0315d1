"""Stopping on SIGTERM (preemption) and Ctrl-C, after the same step on all processes."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from big_retrieval.io import manifest

log = logging.getLogger(__name__)


class StopSignal:
    """A context in which SIGTERM and SIGINT request a stop; a second Ctrl-C interrupts.

    The first call of `requested` installs the handlers. Before the first step there is nothing to
    save, so a signal ends the process at once.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        return self

    def _listen(self) -> None:
        # jax.distributed handles SIGTERM: it stops all processes at one step.
        handled = [signal.SIGINT] if _distributed() else [signal.SIGINT, signal.SIGTERM]
        for signal_number in handled:
            self._before[signal_number] = signal.signal(signal_number, self._handle)

    def __exit__(self, *exc: object) -> None:
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self._asked and signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True
        if signal_number == signal.SIGINT and _distributed():
            signal.raise_signal(signal.SIGTERM)  # jax.distributed notifies all processes

    def requested(self, step: int) -> bool:
        """Returns True if the run saves and stops after this step; equal on every process."""
        if not self._before:
            self._listen()
        if _distributed() and multihost_utils.reached_preemption_sync_point(step):
            return True
        if jax.process_count() > 1:
            return False  # a signal that only one process saw must not split the run
        return self._asked


@contextlib.contextmanager
def log_unsaved(workdir: Path) -> Iterator[None]:
    """A context that warns about the steps that a KeyboardInterrupt loses."""
    try:
        yield
    except KeyboardInterrupt:
        steps = manifest.complete_steps(workdir / "checkpoints")
        lost = f"steps after checkpoints/{max(steps)} are not" if steps else "nothing is"
        start = "resume" if steps else "start from scratch"
        log.warning(f"{lost} saved; repeat the same command to {start}")
        raise


def _distributed() -> bool:
    return jax.distributed.is_initialized()
