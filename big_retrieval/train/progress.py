"""Throughput of a run and its time left, for the line of a logged step."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import jax

from big_retrieval.runtime.chips import peak_flops
from big_retrieval.runtime.clock import duration
from big_retrieval.train.run import TrainingRun


class TimeLeft:
    """Estimate of the seconds until the end of a run, from measurements since its last start.

    Steps count with the mean over all steps so far, as a few seconds say little on a shared
    machine. Pauses between steps (evaluators, checkpoints) count with the time of the last equal
    pause. Pauses of a kind that was not measured yet count with the mean of the others.
    """

    def __init__(self, total: int, first: int, pauses: Mapping[int, Hashable]) -> None:
        """Starts without measurements.

        Args:
          total: steps of the run.
          first: finished steps.
          pauses: step -> kind of pause after it; equal kinds take about the same time.
        """
        self._total, self._pauses = total, pauses
        self._ahead = Counter(kind for step, kind in pauses.items() if step > first)
        self._seconds = 0.0
        self._steps = 0
        self._last: dict[Hashable, float] = {}

    def trained(self, steps: int, seconds: float) -> None:
        """Adds the time of some steps."""
        self._steps += steps
        self._seconds += seconds

    def paused(self, step: int, seconds: float) -> None:
        """Adds the time of the pause after a step."""
        kind = self._pauses.get(step)
        if kind is not None:
            self._ahead[kind] -= 1
            self._last[kind] = seconds

    def after(self, step: int) -> float:
        """Returns seconds from the end of a step to the end of the run; infinite before any."""
        if not self._steps:
            return float("inf")
        usual = sum(self._last.values()) / max(len(self._last), 1)
        pauses = sum(count * self._last.get(kind, usual) for kind, count in self._ahead.items())
        return (self._total - step) * self._seconds / self._steps + pauses


def time_left(run: TrainingRun, first: int) -> TimeLeft:
    """Returns the estimate for a run after `first` finished steps."""
    config, timeline = run.config, run.parts.updates.timeline
    steps = {run.total_steps}
    of_evaluators = {part.every for part in config.evals.values()}
    for every in {config.eval_every, config.checkpoint_every, *of_evaluators} - {0, None}:
        steps |= set(range(every, run.total_steps + 1, every))
    for epochs in (config.eval_every_epochs, config.checkpoint_every_epochs):
        steps |= set(timeline.all_ends(epochs))
    due = {step: run.due(step) for step in steps}
    pauses = {step: (frozenset(names), run.saves(step, names)) for step, names in due.items()}
    return TimeLeft(run.total_steps, first, pauses)


class TrainingProgress:
    """Throughput between two log lines, and the line itself."""

    def __init__(
        self,
        *,
        total: int,
        batch_size: int,
        pair_flops: Callable[[], int],
        devices: int,
        left: TimeLeft,
    ) -> None:
        """Starts the clock.

        Args:
          total: steps of the run.
          batch_size: rows of the global batch.
          pair_flops: counts the operations of a pair (`step_figures.pair_flops`), which takes
            seconds; called for MFU if the device's peak is known.
          devices: number of devices of the mesh.
          left: gets the times of steps and pauses.
        """
        self._total, self._batch, self._devices = total, batch_size, devices
        self._left = left
        self._peak = peak_flops(jax.devices()[0])
        self._flops = 0 if self._peak is None else pair_flops()
        self._seconds = self._waited = 0.0
        self._steps = 0
        self._resumed_at = time.monotonic()

    @contextlib.contextmanager
    def paused(self, step: int) -> Iterator[None]:
        """Returns a context for the pause after a step: evaluation, saving."""
        stopped = self._stop()
        yield
        self._resumed_at = time.monotonic()
        self._left.paused(step, self._resumed_at - stopped)

    def _stop(self) -> float:
        """Counts the seconds until now, and returns the time."""
        now = time.monotonic()
        self._seconds += now - self._resumed_at
        return now

    def step(self, waited: float) -> None:
        """Counts a step that waited this many seconds for its batch."""
        self._steps += 1
        self._waited += waited

    def measure(self) -> dict[str, float]:
        """Returns examples/s, share of data wait, and MFU if the peak is known, since last call."""
        self._resumed_at = self._stop()
        seconds, steps, waited = max(self._seconds, 1e-9), self._steps, self._waited
        self._seconds = self._waited = 0.0
        self._steps = 0
        self._left.trained(steps, seconds)
        rate = steps * self._batch / seconds
        out = {"examples_per_second": round(rate, 2), "data_wait": round(waited / seconds, 4)}
        if self._peak is not None:
            out["mfu"] = round(rate * self._flops / (self._peak * self._devices), 4)
        return out

    def line(self, step: int, row: Mapping[str, Any]) -> str:
        """The progress line of a logged step."""
        mfu = f"  mfu {row['mfu']:.1%}" if "mfu" in row else ""
        return (
            f"step {step:>{len(str(self._total))}}/{self._total}  loss {row['loss']:.4f}  "
            f"{row['examples_per_second']:,.0f} examples/s{mfu}  "
            f"data wait {row['data_wait']:.1%}  eta {duration(self._left.after(step))}"
        )
