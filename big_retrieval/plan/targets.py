"""Devices that exist only for a compiler: a TPU slice or GPUs that this machine does not have.

libtpu compiles for every TPU slice, and XLA's CUDA plugin for every GPU that a description names.
Nothing runs on these devices. Nothing here imports jax before `target_devices` does.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from big_retrieval.errors import UserError
from big_retrieval.runtime.chips import Chip

EXTRAS = {"tpu": "plan-tpu", "gpu": "plan-gpu"}  # platform -> extra that installs its compiler
_PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_cuda12_plugin", "jax_cuda13_plugin")}
_FLAT = ("v5e", "v6e")  # chips whose slices are grids of two dimensions
_ONE_HOST = 4  # chips of a TPU host; a smaller slice needs the bounds of its host


class _Gpu(NamedTuple):
    """Figures of a GPU that XLA's choices depend on, from the vendor's public documents."""

    name: str
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    units: int  # float32 units of a core
    threads: int  # of a core
    shared: int  # KiB of shared memory of a core
    cache: int  # bytes of the L2 cache
    clock: float  # GHz
    memory: int  # bytes that the driver reports


_A100 = ((8, 0), 108, 64, 2048, 164, 41943040, 1.41)
_HOPPER = ((9, 0), 132, 128, 2048, 228, 52428800, 1.98)
_GPUS = {
    "a100-40": _Gpu("NVIDIA A100-SXM4-40GB", *_A100, 42331013120),
    "a100-80": _Gpu("NVIDIA A100-SXM4-80GB", *_A100, 85100068864),
    "h100": _Gpu("NVIDIA H100 80GB HBM3", *_HOPPER, 84942979072),
    "h200": _Gpu("NVIDIA H200", *_HOPPER, 150754820096),
    "b200": _Gpu("NVIDIA B200", (10, 0), 148, 128, 2048, 228, 132644864, 1.965, 191514411008),
    "l4": _Gpu("NVIDIA L4", (8, 9), 58, 128, 1536, 100, 50331648, 2.04, 23743954944),
}


def missing(chip: Chip) -> str:
    """Returns an error message if no installed compiler supports a chip, else ""."""
    if chip.platform not in EXTRAS:
        return ""
    if chip.name == "v4":
        return (
            "libtpu compiles for the two cores of a v4 chip separately. Plan memory and time with "
            "another chip."
        )
    if not any(importlib.util.find_spec(name) for name in _PACKAGES[chip.platform]):
        extra = EXTRAS[chip.platform]
        return (
            f"No compiler for {chip.name} is installed: install the extra {extra} "
            f"(pip install 'big_retrieval[{extra}]') for memory, traffic and time."
        )
    return ""


def check_count(chip: Chip, count: int) -> None:
    """Raises a UserError if no slice or cluster has this number of devices."""
    if chip.platform == "tpu" and (count & (count - 1) or count > chip.node):
        largest = 1 << (chip.node.bit_length() - 1)
        near = min(largest, 1 << (count.bit_length() - 1))
        raise UserError(
            f"--topology is {chip.name}-{count}. A slice of {chip.name} has a power of two of "
            f"chips, at most {largest:,}. Use {chip.name}-{near}."
        )
    if chip.platform == "gpu" and count > chip.node and count % chip.node:
        raise UserError(
            f"--topology is {chip.name}-{count}. More than {chip.node} GPUs need whole hosts of "
            f"{chip.node}. Use {chip.name}-{count // chip.node * chip.node}."
        )


def target_devices(chip: Chip, count: int) -> Sequence[Any]:
    """Returns devices to compile for; call `environment.prepare` before."""
    from jax.experimental import topologies

    check_count(chip, count)
    options = tpu_options(chip, count) if chip.platform == "tpu" else gpu_options(chip, count)
    try:
        return topologies.get_topology_desc(**options).devices
    except Exception as error:  # any exception of the plugin
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"The compiler for {chip.name} does not start: {reason}. Reinstall the extra "
            f"{EXTRAS[chip.platform]} for the installed version of jax."
        ) from None


def tpu_options(chip: Chip, count: int) -> dict[str, Any]:
    """Returns jax's options for a slice: the grid that is closest to a square or a cube."""
    axes, exponent = 2 if chip.name in _FLAT else 3, count.bit_length() - 1
    sizes = [2 ** ((exponent + i) // axes) for i in range(axes)]
    if count <= _ONE_HOST:  # its chips are in one plane
        sizes = [2 ** (exponent // 2), 2 ** -(-exponent // 2), 1][:axes]
    options = {"platform": "tpu", "topology_name": f"{chip.name}:{'x'.join(map(str, sizes))}"}
    whole_hosts = {} if count >= _ONE_HOST else {"chips_per_host_bounds": (*sizes[:2], 1)}
    return options | whole_hosts


def gpu_options(chip: Chip, count: int) -> dict[str, Any]:
    """Returns jax's options for GPUs: a description, and "partitions x hosts x GPUs of a host"."""
    hosts = math.ceil(count / chip.node)
    return {
        "platform": "cuda",
        "topology_name": "",
        "target_config": gpu_description(chip),
        "topology": f"1x{hosts}x{count // hosts}",
    }


def gpu_description(chip: Chip) -> str:
    """Returns XLA's GpuTargetConfigProto of a GPU, as text."""
    gpu, kib = _GPUS[chip.name], 1024
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {gpu.threads}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  core_count: {gpu.cores} fpus_per_core: {gpu.units} clock_rate_ghz: {gpu.clock}
  shared_memory_per_core: {gpu.shared * kib} shared_memory_per_block: {48 * kib}
  shared_memory_per_block_optin: {(gpu.shared - 1) * kib}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  l2_cache_size: {gpu.cache} device_memory_size: {gpu.memory}
  memory_bandwidth: {round(chip.bandwidth or 0)}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{gpu.name}"
"""
