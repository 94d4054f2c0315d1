"""XLA options of compiled training steps, by platform of the mesh."""

from jax.sharding import Mesh

# TPU: products with sharded operands are not cut into loops that pass pieces from chip to chip.
# With fsdp=16 on v5e-16 the loops made a step take 3.5 times the cycles: each piece is too small
# for the matrix unit, and its partial sums are stored in bfloat16. Whole all-gathers and
# reduce-scatters run asynchronously instead. The value is in MiB: larger products are cut.
_BY_PLATFORM: dict[str, dict[str, str | bool]] = {
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}


def compiler_options(mesh: Mesh) -> dict[str, str | bool]:
    """Returns the XLA options, name -> value, for steps that run on the devices of a mesh."""
    return dict(_BY_PLATFORM.get(mesh.devices.flat[0].platform, {}))
