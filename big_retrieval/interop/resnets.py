"""Configuration of the residual network of a checkpoint, from its arrays."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from big_retrieval.config import ResNet
from big_retrieval.errors import UserError


def recognize(
    origin: str, kind_name: str, params: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
) -> ResNet:
    """Returns the configuration of a residual network.

    Args:
      params: path below the tower -> array.
      stats: path below the tower -> running average.

    Raises:
      UserError: an array is missing or has another shape, as in networks with groups or with a stem
        of three convolutions.
    """
    if "conv1/kernel" not in params:
        raise UserError(f"{origin} looks like {kind_name}, but lacks its conv1/kernel.")
    blocks: dict[int, set[int]] = {}
    for path in params:
        if match := re.match(r"layer(\d+)_(\d+)/", path):
            blocks.setdefault(int(match[1]), set()).add(int(match[2]))
    tower = ResNet(
        blocks=tuple(len(blocks[stage]) for stage in sorted(blocks)),
        bottleneck="layer1_0/conv3/kernel" in params,
        stem=params["conv1/kernel"].shape[-1],
    )
    shapes = _shapes(tower)
    for arrays, collection in ((params, "params"), (stats, "batch_stats")):
        expected = shapes[collection]
        for path in sorted(set(arrays) | set(expected)):
            shape = arrays[path].shape if path in arrays else None
            if shape != expected.get(path):
                raise UserError(
                    f"{origin} looks like {kind_name}, but its {path} has the shape {shape} "
                    f"instead of {expected.get(path)}. Networks with groups, other widths or "
                    "another stem cannot be imported."
                )
    return tower


def _shapes(tower: ResNet) -> Any:
    """Returns the shapes of a tower's `params` and `batch_stats` by path; allocates nothing."""
    image = jnp.zeros((1, 32, 32, 3))
    variables: Any = jax.eval_shape(tower.build(0, ()).init, jax.random.key(0), image)
    shapes: Any = jax.tree.map(lambda x: x.shape, nn.unbox(variables))
    return {name: traverse_util.flatten_dict(tree, sep="/") for name, tree in shapes.items()}
