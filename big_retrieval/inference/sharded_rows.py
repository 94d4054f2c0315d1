"""Functions of arrays whose rows are sharded over the devices of a mesh."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.runtime import heartbeat


class ShardedRows:
    """Runs functions on a mesh, the same on every process."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def map_rows(self, function: Callable[..., Any], rows: Iterable[np.ndarray], *rest: Any) -> Any:
        """Applies a function to row-sharded and replicated arrays.

        Args:
          function: jit-able; maps (rows..., rest...) to arrays [C, ...].
          rows: arrays [C, ...] to shard; C is a multiple of `row_multiple`.
          *rest: arrays to replicate.

        Returns:
          The result on every process, as numpy arrays.
        """
        args = [self.spread(np.asarray(x)) for x in rows]
        args += [x if isinstance(x, jax.Array) else self.whole(np.asarray(x)) for x in rest]
        out = jax.jit(function, out_shardings=parallel.replicated(self._mesh))(*args)
        heartbeat.beat()
        return jax.tree.map(np.asarray, out)

    def spread(self, x: np.ndarray) -> jax.Array:
        """Shards the rows of an array, a multiple of `row_multiple`, over the devices."""
        sharding = parallel.batch_sharding(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def whole(self, x: np.ndarray) -> jax.Array:
        """Replicates an array on all devices, for several calls of `map_rows`."""
        sharding = parallel.replicated(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def row_multiple(self) -> int:
        """Returns the number of row groups of the mesh, which divides the rows of `map_rows`."""
        return self._mesh.shape["data"] * self._mesh.shape["fsdp"]
