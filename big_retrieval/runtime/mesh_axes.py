"""Mesh axes that traced code can still shard over."""

import jax


def auto_axes() -> dict[str, int]:
    """Returns name -> size of the current mesh's axes that no surrounding `shard_map` splits.

    Empty without a mesh (`jax.set_mesh`), and where every axis is manual. Code that calls
    `shard_map` inside a tower uses these axes only, as micro-batches may be encoded in a region
    that is manual over `data`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return {name: size for name, size in mesh.shape.items() if name not in mesh.manual_axes}
