"""Makes jax see the requested devices of a plan. Runs before jax starts its backend."""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from big_retrieval.compiled.kernel_cycles import DUMP_FLAGS
from big_retrieval.plan import targets
from big_retrieval.runtime.chips import Chip

_PROBE = "import jax; d = jax.devices(); print(len(d), d[0].device_kind, sep='|')"
_ACCELERATORS = ("nvidia0", "nvidiactl", "accel0", "vfio")
_DUMP = "--xla_jf_dump_to"
_COUNT = "xla_force_host_platform_device_count"


# Without these variables, libtpu queries the machine for its TPU and prints errors if it has none.
# The slice that a program is compiled for is chosen when it is compiled.
_COMPILE_ONLY = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def prepare(chip: Chip, count: int) -> None:
    """Keeps the machine's devices if they are the requested ones; else prepares a substitute.

    The substitute is the chip's compiler alone, or virtual CPUs if it is not installed.
    """
    if chip.platform != "cpu" and available(chip, count):
        return
    if chip.platform == "cpu" or targets.missing(chip):
        virtual_cpus(count)
    else:
        os.environ.update(_COMPILE_ONLY)
        _use_cpu()
        if chip.platform == "tpu" and schedules_folder() is None:
            folder = tempfile.mkdtemp(prefix="tpu_schedules_")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
            dump = f"{arguments} {DUMP_FLAGS} {_DUMP}={folder}"
            os.environ["LIBTPU_INIT_ARGS"] = dump.strip()


def schedules_folder() -> Path | None:
    """Returns the folder that libtpu writes the schedules of kernels to; None if it writes none."""
    match = re.search(rf"{_DUMP}=(\S+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    return Path(match[1]) if match else None


def empty_schedules() -> Path | None:
    """Removes old schedules, whose kernels have the same names; returns `schedules_folder`."""
    folder = schedules_folder()
    for path in folder.iterdir() if folder else ():
        path.unlink()
    return folder


def available(chip: Chip, count: int) -> bool:
    """Returns True if another process sees `count` of the chip."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return False
    if not any(Path("/dev", name).exists() for name in _ACCELERATORS):
        return False
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    number, _, kind = completed.stdout.strip().splitlines()[-1].partition("|")
    return int(number) >= count and re.match(chip.pattern, kind) is not None


def virtual_cpus(count: int) -> None:
    """Gives this process `count` virtual CPU devices."""
    flags = re.sub(rf"--{_COUNT}=\S*", "", os.environ.get("XLA_FLAGS", ""))
    _use_cpu()
    os.environ["XLA_FLAGS"] = f"{flags} --{_COUNT}={count}".strip()
    # Virtual devices deadlock on few cores without threads for all of them.
    os.environ["NPROC"] = str(max(16, count))


def _use_cpu() -> None:
    """Makes CPUs the only devices of this process, which may have imported jax already."""
    import jax

    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
