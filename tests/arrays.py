"""Meshes of virtual devices, and the comparison of arrays."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from big_retrieval import parallel


def device_mesh(data: int, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """A mesh with the axes of the package over the first devices."""
    sizes = (data, fsdp, tensor)
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, parallel.AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def assert_trees_close(found: Any, expected: Any, share: float = 1e-5) -> None:
    """Arrays of equal trees differ by at most a share of the expected array's largest value."""
    paths, tree = jax.tree_util.tree_flatten_with_path(expected)
    for (path, b), a in zip(paths, tree.flatten_up_to(found), strict=True):
        name, wide = jax.tree_util.keystr(path), np.asarray(b, np.float64)
        assert np.shape(a) == wide.shape, name
        atol = share * np.abs(wide).max(initial=0)
        np.testing.assert_allclose(a, wide, rtol=0, atol=atol, err_msg=name)
