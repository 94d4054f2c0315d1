"""How fast a run trains: what a logged step says of the time since the last one."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from big_retrieval.runtime.chips import peak_flops
from big_retrieval.runtime.clock import duration
from big_retrieval.train.eta import TimeLeft


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
          batch_size: global.
          pair_flops: counts the operations of a pair (`step_figures.pair_flops`), which takes
            seconds; called for MFU if the device's peak is known.
          devices: of the mesh.
          left: told what steps and pauses take.
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
        """A context behind a step that is no training: evaluation, saving."""
        stopped = self._stop()
        yield
        self._resumed_at = time.monotonic()
        self._left.paused(step, self._resumed_at - stopped)

    def _stop(self) -> float:
        """Counts the seconds until now, and says when now is."""
        now = time.monotonic()
        self._seconds += now - self._resumed_at
        return now

    def step(self, waited: float) -> None:
        """Counts a step that waited so many seconds for its batch."""
        self._steps += 1
        self._waited += waited

    def measure(self) -> dict[str, float]:
        """Since the last call: examples/s, data wait (share), MFU where the peak is known."""
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
