"""TrainState: all arrays that a step changes, and their first values on a mesh."""

import zlib
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.losses.objective import Objective
from big_retrieval.models.towers import RetrievalModel, example_row, with_stats
from big_retrieval.train import averaging
from big_retrieval.train.averaging import Averaging
from big_retrieval.train.optimizer import Updates


@flax.struct.dataclass
class TrainState:
    """The state of a run; a checkpoint stores it with the data position.

    Attributes:
      step: int32 [], finished steps.
      params: parameter tree; `scalars` are learned by losses, `losses` are modules of losses.
      batch_stats: running averages of batch norms, at the paths of their parameters; {} if none.
      opt_state: see `train/optimizer.py`.
      multipliers: of losses that are constraints, by name (`losses/constraint.py`); {} if none.
      ema: exponential moving average of `params`, or an empty tree.
      swa: mean of `params` over the last steps of this epoch, or an empty tree.
      key: random key of the run; the step folds its index into the key.
      first_bad_step: int32 [], first step with a loss or gradient that was not finite, or -1. From
        this step on, no other array changes.
    """

    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any
    multipliers: Any
    ema: Any
    swa: Any
    key: jax.Array
    first_bad_step: jax.Array

    @property
    def weights(self) -> Any:
        """Weights for evaluation, search and export: `ema` if the run has it, else `params`.

        Running averages of batch norms are under `batch_stats`.
        """
        return with_stats(self.ema or self.params, self.batch_stats)


def init_variables(model: RetrievalModel, objective: Objective, key: jax.Array) -> tuple[Any, Any]:
    """Draws the parameters, boxed with their logical axis names, and the running averages."""
    inputs = model.example_inputs()
    drawn: Any = model.init_with_output(key, inputs)
    reps, variables = drawn
    params, batch_stats = dict(variables["params"]), dict(variables.get("batch_stats", {}))
    scalars = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), objective.scalars())
    if scalars:
        params["scalars"] = scalars
    fields = {**example_row(objective.config.fields), **inputs}  # of a batch, with targets
    for name, field in objective.config.fields.items():
        fields[name] |= {"present": jnp.ones(1, jnp.bool_)} if field.optional else {}
    modules = {}
    for name, module in objective.modules().items():
        # Each key depends on the name of its loss, and not on the other losses.
        own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        modules[name] = module.init(own_key, reps, fields, train=False, rows=None)
    if modules:
        params["losses"] = {name: x.get("params", {}) for name, x in modules.items()}
    stats = {name: x["batch_stats"] for name, x in modules.items() if "batch_stats" in x}
    return params, batch_stats | ({"losses": stats} if stats else {})


def abstract_variables(model: RetrievalModel, objective: Objective) -> tuple[Any, Any]:
    """Returns shapes and types of `init_variables` without allocation; takes seconds to trace."""
    return jax.eval_shape(lambda key: init_variables(model, objective, key), jax.random.key(0))


def abstract_state(
    model: RetrievalModel,
    objective: Objective,
    variables: tuple[Any, Any],
    updates: Updates,
    mesh: Mesh,
    *,
    averages: Averaging,
    seed: int = 0,
) -> tuple[Any, Any, list[str]]:
    """Returns (function that draws the state, abstract state with shardings, its `undivided`).

    Args:
      variables: from `abstract_variables`.
    """

    def draw() -> TrainState:
        init_key, run_key = jax.random.split(jax.random.key(seed))
        params, batch_stats = init_variables(model, objective, init_key)
        return start(nn.unbox(params), batch_stats, run_key)

    def start(params: Any, batch_stats: Any, run_key: jax.Array) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=batch_stats,
            opt_state=updates.init(params),
            multipliers=objective.multipliers(),
            **averaging.first(averages, params),
            key=run_key,
            first_bad_step=jnp.full((), -1, jnp.int32),
        )

    boxed = jax.eval_shape(start, *variables, jax.random.key(seed))  # the names are in the boxes
    shardings = parallel.state_shardings(boxed, mesh)
    abstract = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), nn.unbox(boxed), shardings
    )
    return jax.jit(draw, out_shardings=shardings), abstract, parallel.undivided(boxed, mesh)
