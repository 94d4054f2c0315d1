"""Mesh axes that traced code can still shard over."""

import math
from collections.abc import Callable
from typing import Any

import jax
from flax.linen.spmd import logical_to_mesh_axes


def auto_axes() -> dict[str, int]:
    """Returns name -> size of the current mesh's axes that no surrounding `shard_map` splits.

    Empty without a mesh (`jax.set_mesh`), and where every axis is manual. Code that calls
    `shard_map` inside a tower uses these axes only, as micro-batches may be encoded in a region
    that is manual over `data`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return {name: size for name, size in mesh.shape.items() if name not in mesh.manual_axes}


def logical_axes(name: str) -> tuple[str, ...]:
    """Returns the `auto_axes` of a logical axis, such as "heads"."""
    axes = (logical_to_mesh_axes((name,)) or (None,))[0]
    axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
    return tuple(axis for axis in axes if axis in auto_axes())


def row_axes(batch: int) -> tuple[str, ...]:
    """Returns the mesh axes of rows; none if they do not divide the batch, which is replicated."""
    axes = logical_axes("batch")
    return () if batch % axis_size(axes) else axes


def axis_size(axes: tuple[str, ...]) -> int:
    """Returns the product of axis sizes."""
    return math.prod(auto_axes()[axis] for axis in axes)


def on_each_device(
    function: Callable[..., Any], in_specs: Any, out_specs: Any, *, check: bool
) -> Callable[..., Any]:
    """Maps `function` over the devices with `shard_map`; without a mesh, returns it unchanged."""
    axes = set(auto_axes())
    if not axes:
        return function
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names=axes, check_vma=check
    )
