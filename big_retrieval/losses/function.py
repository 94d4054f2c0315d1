"""The base class of all losses, and the context that a loss is computed from.

A loss never sees a tower, an optimizer or a mesh. `big_retrieval.config.Loss.build` makes a loss.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps

Scalars = Mapping[str, jax.Array]
Result = tuple[jax.Array, dict[str, jax.Array]]  # the loss [] and metrics [], by name


@flax.struct.dataclass
class Context:
    """What a loss is computed from.

    Attributes:
      reps: embeddings of all fields of the global batch, B rows; under `extra`, by the name of a
        loss, the outputs of its module.
      batch: ids, weights and masks of the rows, and the fields themselves.
      scalars: the learned scalars of this loss.
      step: number of finished steps, for factors that are warmed up; int32 [].
      logged: False at steps whose metrics nobody reads, where costly metrics may be left out
        (`metrics_if_logged`); bool [].
    """

    reps: Reps
    batch: Batch
    scalars: Scalars = flax.struct.field(default_factory=dict)
    step: Any = 0
    logged: Any = True


def metrics_if_logged(
    logged: jax.Array | bool, measure: Callable[[], dict[str, jax.Array]]
) -> dict[str, jax.Array]:
    """Returns the metrics of `measure` at logged steps, and NaN at all others without computing.

    Args:
      logged: of the context.
      measure: computes metrics [] by name, of arrays without gradient (`jax.lax.stop_gradient`).
    """
    if logged is True:
        return measure()
    unknown = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), jax.eval_shape(measure))
    return jax.lax.cond(logged, measure, lambda: unknown)


class LossFunction:
    """The base class of losses. All methods are pure."""

    def __call__(self, context: Context) -> Result:
        """The loss [] of a global batch, and metrics [] by name."""
        raise NotImplementedError

    def scalars(self) -> dict[str, float]:
        """The learned scalars and their initial values; parameters `scalars/<loss>/<name>`."""
        return {}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """The scalars put back into their bounds, after the optimizer's update."""
        return dict(scalars)

    def module(self) -> nn.Module | None:
        """A Linen module that exists in training only, such as a decoder; None: the loss has none.

        It is called as `module(reps, fields, train=bool, rows=int32 [b])` with the embeddings and
        fields of b rows and returns arrays [b, ...], which the loss finds in
        `context.reps.extra[<name of the loss>]`. Its parameters are `losses/<name>/...`. It works
        row by row: under `config.microbatch` b is a slice of the batch. What compares
        several rows belongs in `__call__`, which sees all rows.
        """
        return None

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Warnings for the user that follow from the loss's metrics of a step."""
        del metrics
        yield from ()
