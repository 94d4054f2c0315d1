"""Static settings of a loss over all pairs: its tiles, and how the mesh computes them."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import PartitionSpec as P

from big_retrieval.config.topologies import Topology
from big_retrieval.errors import UserError
from big_retrieval.losses.tiles import Axes, FalseNegatives, Reduction, SideRows

Exchange = Literal["auto", "gather", "ring"]
ROW_AXES = ("data", "fsdp")
GATHER_BYTES = 2**28  # "auto": largest rotating side that every device holds whole


@dataclasses.dataclass(frozen=True)
class TileSweep:
    """Settings of the tiles and of their distribution over the mesh; static under jit.

    Attributes:
      block: rows and columns of a tile.
      feature_axis: mesh axis that shards the last axis of the embeddings, and over which the
        scores of each tile are summed; None if it is not sharded.
      axes: mesh axes of the rows; empty without a mesh.
      devices: number of devices along `axes`.
      ring: pass the queries around instead of gathering them.
    """

    topology: Topology
    reduction: Reduction
    false_negatives: FalseNegatives
    block: int
    feature_axis: str | None = None
    axes: Axes = ()
    devices: int = 1
    ring: bool = False

    @property
    def gathers(self) -> bool:
        """True if every device holds all queries at once."""
        return self.devices > 1 and not self.ring

    def spec(self, side: SideRows, sharded: bool = True) -> SideRows:
        """Returns the layout of a side: rows sharded over the devices, or replicated."""
        rows = P((self.axes or None) if sharded else None)
        spec = jax.tree.map(lambda x: rows, side)
        if side.terms is not None:  # a row has terms of all devices, so values are not sharded
            return spec
        between = (None,) * (side.embeddings.ndim - 2)
        return spec.replace(embeddings=P(*rows, *between, self.feature_axis))

    def run(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        """Returns `function` of (sweep, ...) on every device's rows, or as it is without a mesh."""
        local = functools.partial(function, self)
        if jax.sharding.get_abstract_mesh().empty:
            return local
        # check_vma cannot infer that gathered rows are the same on all devices.
        return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def on_mesh(sweep: TileSweep, exchange: Exchange, queries: SideRows) -> TileSweep:
    """Returns the sweep on the mesh of the context (`jax.set_mesh`), if any.

    Args:
      exchange: how queries reach other devices; "auto" gathers up to 256 MiB.

    Raises:
      UserError: the rows do not divide over the devices.
    """
    mesh = jax.sharding.get_abstract_mesh().shape
    axes = tuple(axis for axis in ROW_AXES if axis in mesh)
    devices = math.prod(mesh[axis] for axis in axes)
    rows = len(queries.embeddings)
    if rows % devices:
        raise UserError(
            f"A batch of {rows} rows does not divide over {devices} devices. Pad it with rows "
            "that are not valid."
        )
    size = queries.embeddings.size * queries.embeddings.dtype.itemsize
    if sweep.feature_axis is not None and queries.terms is None:
        size //= mesh[sweep.feature_axis]
    ring = exchange == "ring" or (exchange == "auto" and size > GATHER_BYTES)
    return dataclasses.replace(sweep, axes=axes, devices=devices, ring=ring)
