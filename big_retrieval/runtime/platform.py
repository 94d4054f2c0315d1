"""Platform that traced code is compiled for."""

import jax


def traced_platform() -> str:
    """Returns "cpu", "gpu" or "tpu": the platform of the current mesh, else of jax's backend.

    Code that chooses blocks or kernels calls it while jax traces it. Inside `parallel.use(mesh)`
    and `shard_map` the mesh decides, so that a program for TPUs can be compiled on a CPU.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
