"""Report of a step whose loss or gradient is not finite."""

import contextlib
from typing import Any, NoReturn

import jax
import numpy as np
import optax

from big_retrieval import parallel
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import complete_steps, to_json
from big_retrieval.train.optimizer import names_of
from big_retrieval.train.run import TrainingRun
from big_retrieval.train.schedules import phase_at
from big_retrieval.train.state import TrainState
from big_retrieval.train.step import make_loss, model_in_phase


def _by_module(tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by module, e.g. `image/layers_0/mlp/fc1`."""
    modules: dict[str, Any] = {}
    for name, value in names_of(tree).items():
        modules.setdefault(name.rpartition("/")[0], []).append(value)
    return modules


def _repeat_step(run: TrainingRun, state: TrainState, step: int) -> dict[str, Any]:
    """Repeats a bad step; returns its records, loss and norms by module (strings if not finite)."""
    with contextlib.closing(run.batches(step - 1, step)) as batches:
        batch = run.to_mesh(next(batches))
    spans = run.parts.updates.spans
    model = model_in_phase(run.parts.model, spans[phase_at(spans, step)].phase)
    loss_fn = make_loss(model, run.parts.objective, run.config.microbatch)

    def norms_of(state: TrainState, batch: Any) -> Any:
        key = jax.random.fold_in(state.key, state.step)
        (loss, _), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, batch, key, state.batch_stats, state.step, state.multipliers
        )
        norms = [
            {name: optax.tree.norm(subtree) for name, subtree in _by_module(tree).items()}
            for tree in (state.params, grads)
        ]
        return loss, *norms

    with parallel.use(run.parts.mesh):
        compiled = jax.jit(norms_of, out_shardings=parallel.replicated(run.parts.mesh))
        loss, params, grads = jax.device_get(compiled(state, batch))

    def number(x: Any) -> float | str:
        return float(x) if np.isfinite(x) else str(float(x))

    start = (step - 1) * run.config.batch_size
    return {
        "step": step,
        "loss": number(loss),
        "records": [int(i) for i in run.order.ids(start, run.config.batch_size)],
        "parameter_norm": {name: number(x) for name, x in params.items()},
        "gradient_norm": {name: number(x) for name, x in grads.items()},
    }


def raise_nonfinite(run: TrainingRun, state: TrainState, step: int) -> NoReturn:
    """Writes nonfinite-<step>.json into the run folder and ends the run with a UserError."""
    report = _repeat_step(run, state, step)
    path = run.workdir / f"nonfinite-{step}.json"
    if jax.process_index() == 0:
        write_bytes(path, to_json(report))
    saved = complete_steps(run.workdir / "checkpoints")
    newest = f"step {saved[-1]}" if saved else "none"
    raise UserError(
        f"step {step}: the loss or its gradient is not finite. See {path} for records and norms by "
        f"module. Newest checkpoint: {newest}. Try a lower config.optimizer.lr, a longer warm-up "
        "or dtype float32."
    )
