"""Makes jax see the devices that a plan is asked for. Runs before jax is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

from big_retrieval.runtime.chips import Chip

_PROBE = "import jax; d = jax.devices(); print(len(d), d[0].device_kind, sep='|')"
_ACCELERATORS = ("nvidia0", "nvidiactl", "accel0", "vfio")
_COUNT = "xla_force_host_platform_device_count"


def prepare(chip: Chip, count: int) -> None:
    """Keeps the machine's devices if they are the requested ones; else sets up virtual CPUs.

    Args:
      chip: the requested kind of device.
      count: how many devices.
    """
    if chip.platform != "cpu" and available(chip, count):
        return
    virtual_cpus(count)


def available(chip: Chip, count: int) -> bool:
    """Whether at least so many of the chip are visible here; asks another process, if anything."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return False
    if not any(Path("/dev", name).exists() for name in _ACCELERATORS):
        return False
    try:
        found = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    number, _, kind = found.stdout.strip().splitlines()[-1].partition("|")
    return int(number) >= count and re.match(chip.pattern, kind) is not None


def virtual_cpus(count: int) -> None:
    """So many virtual CPU devices in this process."""
    flags = re.sub(rf"--{_COUNT}=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{flags} --{_COUNT}={count}".strip()
    # Virtual devices deadlock on few cores without threads for all of them.
    os.environ["NPROC"] = str(max(16, count))
