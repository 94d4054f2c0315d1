"""Throughput of a run and its time left, for the line of a logged step."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from big_retrieval.runtime.chips import peak_flops
from big_retrieval.runtime.clock import duration


class TrainingProgress:
    """Throughput between two log lines, and the line itself."""

    def __init__(
        self,
        *,
        first: int,
        total: int,
        batch_size: int,
        pair_flops: Callable[[], int],
        devices: int,
    ) -> None:
        """Starts the clock; calls `pair_flops`, which takes seconds, if the peak is known."""
        self._first, self._total = first, total
        self._batch, self._devices = batch_size, devices
        self._peak = peak_flops(jax.devices()[0])
        self._flops = 0 if self._peak is None else pair_flops()
        self._started = self._measured_at = time.monotonic()
        self._measured_step, self._paused = first, 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Returns a context whose time does not count in the throughput."""
        start = time.monotonic()
        yield
        self._paused += time.monotonic() - start

    def measure(self, step: int, waited: float) -> dict[str, float]:
        """Returns examples/s, share of data wait, and MFU if the peak is known, since last call.

        Args:
          waited: seconds that the loop waited for batches since the last call.
        """
        now = time.monotonic()
        seconds = max(now - self._measured_at - self._paused, 1e-9)
        rate = (step - self._measured_step) * self._batch / seconds
        self._measured_at, self._measured_step, self._paused = now, step, 0.0
        out = {"examples_per_second": round(rate, 2), "data_wait": round(waited / seconds, 4)}
        if self._peak is not None:
            out["mfu"] = round(rate * self._flops / (self._peak * self._devices), 4)
        return out

    def line(self, step: int, row: Mapping[str, Any]) -> str:
        """Returns the progress line of a logged step; pauses count in the remaining time."""
        seconds = (time.monotonic() - self._started) / (step - self._first)
        mfu = f"  mfu {row['mfu']:.1%}" if "mfu" in row else ""
        return (
            f"step {step:>{len(str(self._total))}}/{self._total}  loss {row['loss']:.4f}  "
            f"{row['examples_per_second']:,.0f} examples/s{mfu}  "
            f"data wait {row['data_wait']:.1%}  eta {duration((self._total - step) * seconds)}"
        )
