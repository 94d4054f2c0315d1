"""Accelerators with their figures from vendors' data sheets.

Nothing here imports jax, so that a command line can be checked before jax starts.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from big_retrieval.errors import UserError

GB, GIB, TERA = 1e9, 2**30, 1e12
SUBLANES, LANES = 8, 128  # shape of a TPU's vector registers of 32-bit values
# Share of the memory for arrays. Drivers, libraries and fragmentation take the rest. On GPUs, jax
# takes only 75% by default (XLA_PYTHON_CLIENT_MEM_FRACTION).
USABLE = 0.92


@dataclass(frozen=True)
class Chip:
    """One kind of device; None for unknown figures."""

    name: str  # name for --topology
    pattern: str  # regular expression for the start of jax's `device_kind`
    platform: str  # "gpu", "tpu" or "cpu"
    memory: float  # bytes
    bfloat16: float | None = None  # peak of dense matrix products, FLOP/s
    bandwidth: float | None = None  # bytes/s of the memory
    link: float | None = None  # bytes/s to other devices of its node or pod, in one direction
    network: float | None = None  # bytes/s to devices of other nodes, in one direction
    node: int = 8  # number of devices with fast links
    clock: float | None = None  # Hz of a TPU, whose compiler estimates cycles of this clock

    @property
    def usable(self) -> float:
        """Bytes that a program can use."""
        return USABLE * self.memory

    def speed(self, devices: int) -> float | None:
        """Returns the bytes/s of the slowest link among `devices`, in one direction."""
        return self.link if devices <= self.node else self.network


def _gpu(name: str, pattern: str, gb: float, tera: float, bandwidth: float, link: float,
         network: float) -> Chip:  # fmt: skip
    return Chip(name, pattern, "gpu", gb * GB, tera * TERA, bandwidth * GB, link * GB,
                network * GB)  # fmt: skip


def _tpu(name: str, pattern: str, gib: float, tera: float, bandwidth: float, link: float,
         pod: int, ghz: float) -> Chip:  # fmt: skip
    return Chip(name, pattern, "tpu", gib * GIB, tera * TERA, bandwidth * GB, link * GB,
                3.125 * GB, pod, ghz * GB)  # fmt: skip


CHIPS = (
    _gpu("a100-40", r"NVIDIA A100.*40GB", 40, 312, 1555, 300, 25),
    _gpu("a100-80", r"NVIDIA A100", 80, 312, 2039, 300, 25),
    _gpu("h100", r"NVIDIA H100", 80, 989, 3350, 450, 50),
    _gpu("h200", r"NVIDIA H200", 141, 989, 4800, 450, 50),
    _gpu("b200", r"NVIDIA B200", 180, 2250, 7700, 900, 50),
    _gpu("l4", r"NVIDIA L4\b", 24, 121, 300, 32, 12.5),
    _tpu("v4", r"TPU v4", 32, 275, 1200, 300, 4096, 1.05),
    _tpu("v5e", r"TPU v5 lite|TPU v5e", 16, 197, 819, 200, 256, 1.5),
    _tpu("v5p", r"TPU v5", 95, 459, 2765, 600, 8960, 1.75),
    _tpu("v6e", r"TPU v6 lite|TPU v6e", 32, 918, 1640, 448, 256, 1.75),
)  # fmt: skip


def cpu(devices: int = 1) -> Chip:
    """Returns this machine as a chip; virtual devices share its memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Chip("cpu", r"cpu", "cpu", pages / devices)


def of_kind(kind: str, devices: int = 1) -> Chip | None:
    """Returns the chip of jax's `device_kind`, or None if the table lacks it."""
    if kind.lower() == "cpu":
        return cpu(devices)
    return next((chip for chip in CHIPS if re.match(chip.pattern, kind)), None)


def gib(size: float) -> str:
    """Returns bytes as text in GiB, small numbers in MiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.2f} MiB"


def parse(topology: str) -> tuple[Chip, int]:
    """Returns chip and number of devices of NAME-COUNT, e.g. `h200-1`; raises a UserError."""
    name, _, digits = topology.rpartition("-")
    by_name = {chip.name: chip for chip in CHIPS}
    if not re.fullmatch(r"[1-9]\d{0,5}", digits) or name not in (*by_name, "cpu"):
        raise UserError(
            f"--topology is {topology!r}. Use NAME-COUNT, such as h200-8. Names: "
            f"{', '.join((*by_name, 'cpu'))}."
        )
    count = int(digits)
    return (cpu(count) if name == "cpu" else by_name[name]), count


def peak_flops(device: Any) -> float | None:
    """Returns a device's dense bfloat16 peak in FLOP/s, or None if unknown (CPUs)."""
    chip = of_kind(device.device_kind)
    return None if chip is None else chip.bfloat16
