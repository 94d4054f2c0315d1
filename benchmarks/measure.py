"""What the benchmarks share: interleaved timing, the compiler's memory accounting, the report.

Machines are shared and noisy, so variants take turns within every round and CPU seconds (of all
threads of the process) stand beside wall seconds. Temporary memory is what the compiler allots
(`memory_analysis`), the same on every run. Nothing here imports jax before `use_devices` is done.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of the rounds.

    Attributes:
      cpu: CPU seconds of all threads; means little on a GPU or TPU.
      wall: seconds by the clock.
    """

    cpu: float
    wall: float


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that every benchmark has."""
    out = argparse.ArgumentParser(
        description=(description or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    out.add_argument("--rounds", type=int, default=5, help="interleaved rounds of timing")
    out.add_argument("--compile-only", action="store_true", help="memory only, nothing is run")
    out.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return out


def use_devices(count: int) -> None:
    """Makes a CPU look like `count` devices; to be called before jax is imported."""
    if count > 1:
        flag = f"--xla_force_host_platform_device_count={count}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it


def let_threads_sleep() -> None:
    """Keeps PyTorch's threads from spinning while they wait; to be called before it is imported.

    On shared cores they would else burn CPU seconds, and a comparison would flatter us.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def interleaved(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Times variants in turn, after one call of each that does not count.

    Args:
      variants: name -> a call that returns when its work is done, or returns JAX arrays.
      rounds: how often each is timed.
    """
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    wall: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, call in variants.items():
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            _wait(call())
            if number:
                cpu[name].append(time.process_time() - cpu_start)
                wall[name].append(time.perf_counter() - wall_start)
    return {n: Timing(statistics.median(cpu[n]), statistics.median(wall[n])) for n in variants}


def _wait(result: Any) -> None:
    """Waits for JAX arrays, whatever else a variant returns."""
    import jax

    jax.block_until_ready(result)


def temp_bytes(compiled: Any) -> int:
    """Temporary memory of a compiled JAX function, per device."""
    return int(compiled.memory_analysis().temp_size_in_bytes)


def difference(got: Any, expected: Any) -> float:
    """The largest max|got - expected| / max|expected| among the arrays of two equal trees."""
    import jax
    import numpy as np

    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(g - e)) / np.max(np.abs(e))) for g, e in pairs)


def machine() -> str:
    """The machine in words, for a table of results."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0]
    kind = f"{cores} CPU cores" if device.platform == "cpu" else device.device_kind
    return f"{kind}, {platform.machine()}, jax {jax.__version__}"


def optional(name: str) -> Any:
    """A library, or None and a word about it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed and left out")
        return None


def report(row: Mapping[str, Any], as_json: bool) -> None:
    """Prints a result as a table, and as JSON in the last line where asked.

    Args:
      row: name -> number or text; names that end in `_bytes` are shown in MiB.
      as_json: whether the JSON line follows.
    """
    width = max(map(len, row))
    for name, value in row.items():
        if name.endswith("_bytes") and value is not None:
            text = f"{value / 2**20:,.1f} MiB"
        else:
            text = f"{value:,.4g}" if isinstance(value, float) else str(value)
        print(f"{name:<{width}}  {text}")
    if as_json:
        print(json.dumps(dict(row)))
    sys.stdout.flush()
