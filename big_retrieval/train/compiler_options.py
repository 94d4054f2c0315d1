"""XLA options of compiled training steps, by platform of the mesh."""

from jax.sharding import Mesh

# TPU: products with sharded operands are not cut into loops that pass pieces from chip to chip.
# On v5e-16, the loops made a step with fsdp=16 take 3.5 times the cycles and one with fsdp=4 and
# tensor=4 take 1.3 times: each piece is too small for the matrix unit. Without fsdp there are no
# such loops, and the option changes nothing. The value is in MiB: larger products are cut.
#
# Options for asynchronous all-reduces on TPU (async_collective_fusion_fuse_all_reduce,
# data_parallel_all_reduce_opt) left every all-reduce of a step synchronous. On GPU, at least 92%
# of the bytes overlap with computation by default.
_BY_PLATFORM: dict[str, dict[str, str | bool]] = {
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}


def compiler_options(mesh: Mesh) -> dict[str, str | bool]:
    """Returns the XLA options, name -> value, for steps that run on the devices of a mesh."""
    return dict(_BY_PLATFORM.get(mesh.devices.flat[0].platform, {}))
