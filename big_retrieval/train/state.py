"""TrainState: everything that a step changes, and how it comes into being on a mesh."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.models.towers import RetrievalModel, with_stats
from big_retrieval.train import averaging
from big_retrieval.train.averaging import Averaging
from big_retrieval.train.optimizer import Updates


@flax.struct.dataclass
class TrainState:
    """The state of a run; one checkpoint holds it together with the data position.

    Attributes:
      step: int32 [], finished steps.
      params: parameter tree; learned scalars of the loss are under `scalars`.
      batch_stats: running averages of batch norms, at the paths of their parameters; {} if none.
      opt_state: the optimizer's, see `train/optimizer.py`.
      ema: exponential moving average of `params`, or an empty tree.
      swa: mean of `params` over the last steps of this epoch, or an empty tree.
      key: the run's random key; the step folds its number into it.
      first_bad_step: int32 [], the first step whose loss or gradient was not finite, or -1. From
        then on nothing changes any more.
    """

    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any
    ema: Any
    swa: Any
    key: jax.Array
    first_bad_step: jax.Array

    @property
    def weights(self) -> Any:
        """What evaluators, search and exports use: the average where one is kept.

        Running averages of batch norms are under `batch_stats`.
        """
        return with_stats(self.ema or self.params, self.batch_stats)


def init_variables(
    model: RetrievalModel, scalars: dict[str, float], key: jax.Array
) -> tuple[Any, Any]:
    """Draws the parameters, boxed with their logical axis names, and the running averages."""
    variables = model.init(key, model.example_inputs())
    learned = {name: jnp.asarray(value, jnp.float32) for name, value in scalars.items()}
    return {**variables["params"], "scalars": learned}, variables.get("batch_stats", {})


def abstract_variables(model: RetrievalModel, scalars: dict[str, float]) -> tuple[Any, Any]:
    """Shapes and types of `init_variables`, with nothing allocated; takes seconds to trace."""
    return jax.eval_shape(lambda key: init_variables(model, scalars, key), jax.random.key(0))


def abstract_state(
    model: RetrievalModel,
    scalars: dict[str, float],
    variables: tuple[Any, Any],
    updates: Updates,
    mesh: Mesh,
    *,
    averages: Averaging,
    seed: int = 0,
) -> tuple[Any, Any]:
    """The state without its values.

    Args:
      model: towers and heads.
      scalars: learned scalars of the loss with their starts.
      variables: their `abstract_variables`.
      updates: the optimizer.
      mesh: where the state will live.
      averages: of the parameters.
      seed: of the run.

    Returns:
      (a function without arguments that draws the state, the abstract state with shardings).
    """

    def draw() -> TrainState:
        init_key, run_key = jax.random.split(jax.random.key(seed))
        params, batch_stats = init_variables(model, scalars, init_key)
        return start(nn.unbox(params), batch_stats, run_key)

    def start(params: Any, batch_stats: Any, run_key: jax.Array) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=batch_stats,
            opt_state=updates.init(params),
            **averaging.first(averages, params),
            key=run_key,
            first_bad_step=jnp.full((), -1, jnp.int32),
        )

    boxed = jax.eval_shape(start, *variables, jax.random.key(seed))  # the names are in the boxes
    shardings = parallel.state_shardings(boxed, mesh)
    abstract = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), nn.unbox(boxed), shardings
    )
    return jax.jit(draw, out_shardings=shardings), abstract


def count_parameters(params: Any) -> dict[str, int]:
    """Number of parameters per top-level part (tower, head, scalars)."""
    sizes = {}
    for name, part in nn.unbox(params).items():
        sizes[name] = sum(x.size for x in jax.tree.leaves(part))
    return sizes
