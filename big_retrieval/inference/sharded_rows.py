"""Functions of arrays whose rows are spread over the devices of a mesh."""

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
        """Keeps the mesh."""
        self._mesh = mesh

    def map_rows(self, function: Callable[..., Any], rows: Iterable[np.ndarray], *rest: Any) -> Any:
        """Applies a function to row-sharded arrays and whole ones.

        Args:
          function: jit-able, of (row arrays..., whole arrays...), to arrays [rows, ...].
          rows: arrays [C, ...], C a multiple of the mesh's row groups.
          *rest: arrays that every device gets whole.

        Returns:
          The result on every process, as numpy arrays.
        """
        args = [self.spread(np.asarray(x)) for x in rows]
        args += [x if isinstance(x, jax.Array) else self.whole(np.asarray(x)) for x in rest]
        out = jax.jit(function, out_shardings=parallel.replicated(self._mesh))(*args)
        heartbeat.beat()
        return jax.tree.map(np.asarray, out)

    def spread(self, x: np.ndarray) -> jax.Array:
        """An array whose rows are spread over the devices; `row_multiple` divides their number."""
        sharding = parallel.batch_sharding(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def whole(self, x: np.ndarray) -> jax.Array:
        """An array on every device, to pass to `map_rows` again and again."""
        sharding = parallel.replicated(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def row_multiple(self) -> int:
        """The number of row groups; `map_rows` needs a multiple of it as its number of rows."""
        return self._mesh.shape["data"] * self._mesh.shape["fsdp"]
