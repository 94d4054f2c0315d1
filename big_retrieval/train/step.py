"""The training step: one pure function from (state, batch) to (state, metrics)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Phase, negatives_field
from big_retrieval.config.optimizer import in_mode
from big_retrieval.data.fields.contents import ContentIds
from big_retrieval.data.fields.labels import label_types
from big_retrieval.errors import UserError
from big_retrieval.losses.objective import Objective, join_metrics
from big_retrieval.models.towers import RetrievalModel, of_model
from big_retrieval.train.averaging import Average
from big_retrieval.train.microbatch import in_slices
from big_retrieval.train.optimizer import Updates
from big_retrieval.train.state import TrainState

# Names in metrics.jsonl and results.json that the trainer writes itself.
LOGGED = frozenset((
    "step", "loss", "first_bad_step", "grad_norm", "clipped_grad_norm", "learning_rate",
    "swa_count", "examples_per_second", "data_wait", "mfu", "damaged", "records", "params_sha256",
    "steps", "evaluated_step", "seconds", "devices", "parameter_count", "resumed_from",
))  # fmt: skip
# XLA options by platform of the mesh.
# TPU: the option prevents that XLA computes a product with sharded operands in a loop, which passes
# pieces from chip to chip. On v5e-16, such loops took 3.5 times the cycles per step with fsdp=16,
# and 1.3 times with fsdp=4 and tensor=4: each piece is too small for the matrix unit. Without fsdp,
# XLA uses no such loops. The value is in MiB: only larger products are computed in loops.
#
# Options for asynchronous all-reduces on TPU (async_collective_fusion_fuse_all_reduce,
# data_parallel_all_reduce_opt) left every all-reduce of a step synchronous. On GPU, at least 92%
# of the bytes overlap with computation by default.
_BY_PLATFORM: dict[str, dict[str, str | bool]] = {
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}
Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def model_in_phase(model: RetrievalModel, phase: Phase) -> RetrievalModel:
    """Returns the model with the batch statistics of a phase; its parameters are the same."""
    if phase.batch_stats == "tower":
        return model
    towers = {name: in_mode(tower, phase.batch_stats) for name, tower in model.towers.items()}
    fields: dict[str, Any] = {}
    for name, field in model.fields.items():
        head: Any = in_mode(field.head, phase.batch_stats)
        fields[name] = dataclasses.replace(field, head=head)  # type: ignore
    return model.clone(towers=towers, fields=fields)


def make_loss(
    model: RetrievalModel, objective: Objective, microbatch: int | None
) -> Callable[..., Any]:
    """Returns a function of (params, batch, key, batch_stats, step, multipliers, logged).

    The function returns (loss, ((metrics, L of constraints), batch_stats)). Running averages of
    batch norms are updated once, by the mean over all slices of `microbatch` rows.
    """
    modules = objective.modules()

    def loss(
        params: Any,
        batch: Batch,
        key: jax.Array,
        batch_stats: Any = None,
        step: jax.Array | int = 0,
        multipliers: Any = None,
        logged: jax.Array | bool = True,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        count = batch.valid.shape[0]

        def encode(params: Any, shared: Any, part: tuple[Any, Any, jax.Array]) -> tuple[Reps, Any]:
            return _encode(model, modules, count, params, shared, part)

        rows, negatives = jnp.arange(count, dtype=jnp.int32), batch.negatives
        if negatives is not None:  # missing negatives do not count in batch statistics
            present = {"present": batch.negatives_valid}
            negatives = {name: {**arrays, **present} for name, arrays in negatives.items()}
        inputs = (batch.fields, negatives, rows)
        encoded = {name: part for name, part in params.items() if name != "scalars"}
        shared = key, batch_stats or {}
        averages = bool(jax.tree.leaves(batch_stats))
        reps, moved = in_slices(encode, encoded, shared, inputs, microbatch, has_common=averages)
        scalars = params.get("scalars", {})
        value, metrics = objective(reps, batch, scalars, step, multipliers, logged)
        return value, (metrics, moved)

    return loss


def _encode(
    model: RetrievalModel,
    modules: Mapping[str, nn.Module],
    count: int,
    params: Any,
    shared: tuple[jax.Array, Any],
    inputs: tuple[Any, Any, jax.Array],
) -> tuple[Reps, Any]:
    """Returns embeddings of `inputs` with the outputs of modules, and updated running averages."""
    (key, batch_stats), (fields, negatives, rows) = shared, inputs
    stats, of_losses = of_model(batch_stats), batch_stats.get("losses", {})
    apply = functools.partial(_apply, key, model, of_model(params), stats)
    reps, moved = apply(fields, rows=rows)
    extra, averages = {}, {}
    for name, module in modules.items():
        variables = params["losses"][name], of_losses.get(name, {})
        extra[name], changed = _apply(key, module, *variables, reps, fields, rows=rows)
        averages |= {name: changed} if changed else {}
    reps = reps.replace(vectors={})  # type: ignore  # for modules only
    if negatives is not None:
        reps = reps.replace(negatives=_encode_negatives(apply, negatives, rows, count))
    if extra:
        reps = reps.replace(extra=extra)
    return reps, {**moved, "losses": averages} if averages else moved


def _encode_negatives(
    apply: Callable[..., Any], negatives: Any, rows: jax.Array, count: int
) -> Reps:
    """Returns embeddings of hard negatives, arrays [b, K, ...]; running averages stay the same."""
    (k,) = {x.shape[1] for x in jax.tree.leaves(negatives)}
    # Dropout depends on the row index, so that slices draw the same as the whole batch. Indices of
    # negatives follow the `count` rows of the batch.
    indices = count + rows[:, None] * k + jnp.arange(k)  # [b, K]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (negatives, indices))
    reps, _ = apply(flat[0], rows=flat[1])
    reps = reps.replace(vectors={})
    return jax.tree.map(lambda x: x.reshape(-1, k, *x.shape[1:]), reps)


def _apply(
    key: jax.Array, module: Any, params: Any, stats: Any, *inputs: Any, rows: Any
) -> tuple[Any, Any]:
    """Returns a module's output in training, and its updated running averages."""
    variables = {"params": params, "batch_stats": stats}
    options: Any = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
    out, moved = module.apply(variables, *inputs, train=True, rows=rows, **options)
    return out, moved.get("batch_stats", {})


def is_logged(config: Config, step: Any, total_steps: int) -> Any:
    """Returns True if the metrics of a step (from 1) are logged; an int or int32 [] `step`."""
    return (step % config.log_every == 0) | (step == total_steps)


def make_step(
    config: Config,
    model: RetrievalModel,
    objective: Objective,
    updates: Updates,
    average: Average,
    phase: int = 0,
) -> Step:
    """Returns the step of a phase (index in `updates.spans`), not compiled.

    A step whose loss or gradient is not finite changes only `first_bad_step`, and so do all later
    steps. The loop raises at the next logged step.
    """
    settings, total_steps = updates.spans[phase].phase, updates.timeline.total_steps
    prefixes = tuple(f"{evaluator.prefix(name)}/" for name, evaluator in config.evals.items())
    loss_fn = make_loss(model_in_phase(model, settings), objective, config.microbatch)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.step)
        # True at every step needs no branch in the program.
        logged = config.log_every == 1 or is_logged(config, state.step + 1, total_steps)
        (loss, ((metrics, limited), batch_stats)), grads = jax.value_and_grad(
            loss_fn, has_aux=True
        )(state.params, batch, key, state.batch_stats, state.step, state.multipliers, logged)
        params, opt_state, moved = updates.update(
            phase, grads, state.opt_state, state.params, state.step
        )
        if "scalars" in params:
            params = {**params, "scalars": objective.bound(params["scalars"])}
        multipliers, logged = objective.ascend(state.multipliers, limited)
        params, ema, swa, averaged = average.update(params, state.ema, state.swa, state.step + 1)
        new = state.replace(  # type: ignore
            step=state.step + 1,
            params=params,
            batch_stats=state.batch_stats if settings.batch_stats == "batch" else batch_stats,
            opt_state=opt_state,
            multipliers=multipliers,
            ema=ema,
            swa=swa,
        )
        state = _guard(state, new, jnp.isfinite(loss) & jnp.isfinite(moved["grad_norm"]))
        _check_metrics(loss, metrics, prefixes)
        steps = {"loss": loss, "first_bad_step": state.first_bad_step}
        return state, join_metrics(steps, moved, averaged, metrics, logged)

    return step


def _check_metrics(loss: Any, metrics: Mapping[str, Any], prefixes: tuple[str, ...]) -> None:
    """Raises if a loss returns an array, or a metric with a name that the trainer logs itself."""
    for name, value in {"loss": loss, **metrics}.items():
        if jnp.shape(value):
            raise UserError(
                f"A loss returns {name!r} with the shape {jnp.shape(value)}. Return one number."
            )
    for name in metrics:
        if name in LOGGED or name.startswith(prefixes):
            raise UserError(
                f"A loss returns the metric {name!r}, a name that the trainer logs itself. "
                "Rename the loss's metric."
            )


def _guard(old: TrainState, new: TrainState, finite: jax.Array) -> TrainState:
    """Returns the new state if all steps were finite, else the old state with the step marked."""
    good = finite & (old.first_bad_step < 0)
    guarded = jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)
    mark = jnp.where(finite | (old.first_bad_step >= 0), old.first_bad_step, old.step + 1)
    return guarded.replace(first_bad_step=mark)


def compiler_options(mesh: Mesh) -> dict[str, str | bool]:
    """Returns the XLA options for steps on the devices of a mesh."""
    return dict(_BY_PLATFORM.get(mesh.devices.flat[0].platform, {}))


def compile_step(step: Step, state: Any, batch: Any, mesh: Mesh) -> jax.stages.Compiled:
    """Compiles a step for a state and a batch, or abstract ones; the state's buffers are reused."""
    shardings = jax.tree.map(lambda x: x.sharding, state)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, parallel.replicated(mesh)))
    with parallel.use(mesh):
        return jitted.lower(state, batch).compile(compiler_options(mesh))


def abstract_batch(config: Config, mesh: Mesh | None, contents: ContentIds | None = None) -> Batch:
    """Returns shapes, types and, on a mesh, shardings of a global batch; allocates no arrays."""
    sharding = None if mesh is None else parallel.batch_sharding(mesh)

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.batch_size, *shape), dtype, sharding=sharding)

    fields: dict[str, Any] = {}
    for name, field in config.fields.items():
        shapes = field.shapes().items()
        fields[name] = {key: array(dtype, *shape) for key, (shape, dtype) in shapes}
        if field.optional:
            fields[name]["present"] = array(jnp.bool_)
    extras: dict[str, Any] = {"document_id": array(jnp.int32)}
    extras |= {name: array(dtype) for name, dtype in label_types(config.labels).items()}
    shapes_of_ids = {} if contents is None else contents.shapes()
    extras |= {name: array(jnp.int32, *shape) for name, shape in shapes_of_ids.items()}
    name, count = negatives_field(config), config.negatives.count
    if name:
        shapes = config.fields[name].shapes().items()
        arrays = {key: array(dtype, count, *shape) for key, (shape, dtype) in shapes}
        extras["negatives"] = {name: arrays}
        extras["negatives_valid"] = array(jnp.bool_, count)
    return Batch(fields=fields, valid=array(jnp.bool_), **extras)  # type: ignore
