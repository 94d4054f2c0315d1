"""Inputs of a loss. A loss does not read towers, the optimizer or the mesh."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config

Scalars = Mapping[str, jax.Array]
Result = tuple[jax.Array, dict[str, jax.Array]]  # the loss [] and metrics [], by name


@flax.struct.dataclass
class Context:
    """Inputs of a loss.

    Attributes:
      reps: embeddings of all fields of the global batch, B rows.
      config: checked config; its `tokenizer.vocab_size` is the size of the tokenizer itself.
      name: key of the loss in `config.losses`.
      scalars: learned scalars of this loss.
      step: number of finished steps, for warm-ups; int32 [].
      logged: bool []; False if the step's metrics are not read, see `metrics_if_logged`.
    """

    reps: Reps
    batch: Batch
    config: Config = flax.struct.field(pytree_node=False)
    name: str = flax.struct.field(default="main", pytree_node=False)
    scalars: Scalars = flax.struct.field(default_factory=dict)
    step: Any = 0
    logged: Any = True

    @property
    def output(self) -> Any:
        """Outputs of the loss's module for all rows, arrays [B, ...]."""
        return self.reps.extra[self.name]


def metrics_if_logged(
    logged: jax.Array | bool, measure: Callable[[], dict[str, jax.Array]]
) -> dict[str, jax.Array]:
    """Returns the metrics of `measure` at logged steps, and NaN at all others without computing.

    Args:
      measure: computes metrics [] by name, from arrays without gradient (`jax.lax.stop_gradient`).
    """
    if logged is True:
        return measure()
    unknown = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), jax.eval_shape(measure))
    return jax.lax.cond(logged, measure, lambda: unknown)
