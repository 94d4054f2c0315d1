"""Accelerators: their names, and their nominal figures.

All figures are from vendors' data sheets. Nothing here imports jax, so that a command line
can be checked before it starts.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from big_retrieval.errors import UserError

GB, GIB, TERA = 1e9, 2**30, 1e12
SUBLANES, LANES = 8, 128  # shape of a TPU's vector registers, of 32 bits a value
# Left over: the driver's and the libraries' own memory, and what fragmentation wastes. On GPUs jax
# takes only 75% unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.
USABLE = 0.92


@dataclass(frozen=True)
class Chip:
    """One kind of device.

    Attributes:
      name: as in --topology.
      pattern: regular expression at the start of jax's `device_kind`.
      platform: "gpu", "tpu" or "cpu".
      memory: bytes.
      bfloat16: peak of dense matrix products, FLOP/s; None: not known.
      bandwidth: of the memory, bytes/s.
      link: to other devices of its node or pod, bytes/s in one direction.
      network: to devices beyond, bytes/s in one direction.
      node: devices that the fast links join.
      clock: of a TPU, Hz; its compiler's cycles are of this length.
    """

    name: str
    pattern: str
    platform: str
    memory: float
    bfloat16: float | None = None
    bandwidth: float | None = None
    link: float | None = None
    network: float | None = None
    node: int = 8
    clock: float | None = None

    @property
    def usable(self) -> float:
        """Bytes that a program can count on."""
        return USABLE * self.memory

    def speed(self, devices: int) -> float | None:
        """Bytes/s in one direction over the slowest link among so many devices."""
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
    """This machine; virtual devices share its memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Chip("cpu", r"cpu", "cpu", pages / devices)


def of_kind(kind: str, devices: int = 1) -> Chip | None:
    """The chip that jax calls `device_kind`, or None where it is not in the table."""
    if kind.lower() == "cpu":
        return cpu(devices)
    return next((chip for chip in CHIPS if re.match(chip.pattern, kind)), None)


def gib(size: float) -> str:
    """Bytes in GiB; small numbers in MiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.2f} MiB"


def parse(topology: str) -> tuple[Chip, int]:
    """NAME-COUNT, e.g. `h200-1`, as a chip and a number of devices.

    Raises:
      UserError: the name is unknown, or the number is not positive.
    """
    name, _, number = topology.rpartition("-")
    known = {chip.name: chip for chip in CHIPS}
    if not re.fullmatch(r"[1-9]\d{0,5}", number) or name not in (*known, "cpu"):
        raise UserError(
            f"--topology is {topology!r}; it must be NAME-COUNT, e.g. h200-8, with a name of: "
            f"{', '.join((*known, 'cpu'))}."
        )
    count = int(number)
    return (cpu(count) if name == "cpu" else known[name]), count


def peak_flops(device: Any) -> float | None:
    """The chip's dense bf16 peak in FLOP/s, or None where it is not known (CPUs)."""
    chip = of_kind(device.device_kind)
    return None if chip is None else chip.bfloat16
