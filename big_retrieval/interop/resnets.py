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


def recognise(
    origin: str, kind: str, params: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
) -> ResNet:
    """Returns the configuration of a residual network.

    Args:
      origin: the file, for messages.
      kind: name of the architecture, for messages.
      params: path below the tower -> array.
      stats: path below the tower -> running average.

    Raises:
      UserError: an array is missing or has another shape, as in networks with groups or with a stem
        of three convolutions.
    """
    if "conv1/kernel" not in params:
        raise UserError(f"{origin} looks like {kind}, but lacks its conv1/kernel.")
    blocks: dict[int, set[int]] = {}
    for path in params:
        if match := re.match(r"layer(\d+)_(\d+)/", path):
            blocks.setdefault(int(match[1]), set()).add(int(match[2]))
    tower = ResNet(
        blocks=tuple(len(blocks[stage]) for stage in sorted(blocks)),
        bottleneck="layer1_0/conv3/kernel" in params,
        stem=params["conv1/kernel"].shape[-1],
    )
    wanted = shapes(tower)
    for found, collection in ((params, "params"), (stats, "batch_stats")):
        for path in sorted(set(found) | set(wanted[collection])):
            have = list(found[path].shape) if path in found else "nothing"
            want = list(wanted[collection][path]) if path in wanted[collection] else "nothing"
            if have != want:
                raise UserError(
                    f"{origin} looks like {kind}, but its {path} is {have} instead of {want}: "
                    "networks with groups, other widths or another stem cannot be imported."
                )
    return tower


def shapes(tower: ResNet) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns the shapes of a tower's `params` and `batch_stats` by path; allocates nothing."""
    image = jnp.zeros((1, 32, 32, 3))
    drawn: Any = jax.eval_shape(tower.build(0, ()).init, jax.random.key(0), image)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tree in drawn.items():
        leaves: Any = traverse_util.flatten_dict(nn.unbox(tree), sep="/")
        found[name] = {path: x.shape for path, x in leaves.items()}
    return found
