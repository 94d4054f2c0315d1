"""Bytes of a training state and a batch on one device, exact, from shapes and shardings."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import abstract_batch

PARTS = ("parameters", "optimizer", "batch")


def arrays_bytes(tree: Any) -> int:
    """Returns the bytes of abstract arrays on one device, by their shardings, without padding."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


def row_devices(parts: BuiltModel) -> int:
    """Returns the number of devices that rows are sharded over."""
    return parts.mesh.shape["data"] * parts.mesh.shape["fsdp"]


def state_bytes(parts: BuiltModel) -> dict[str, int]:
    """Returns the bytes of each of `PARTS` on one device; `optimizer` includes averages."""
    params = arrays_bytes(parts.abstract.params)
    return {
        "parameters": params,
        "optimizer": arrays_bytes(parts.abstract) - params,
        "batch": arrays_bytes(abstract_batch(parts.config, parts.mesh)),
    }
