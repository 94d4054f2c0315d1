"""The training loop: from a configuration to a run folder. Start reading here.

A record becomes a row of a Batch (data/pipeline.py), a tower and a head make embeddings of it
(models/towers.py), the objective makes one number of all embeddings (losses/objective.py), and the
step makes a new TrainState of that (train/step.py). `train` puts these together and then turns the
crank. The methods of all papers run through it unchanged.
"""

import functools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.evals import evaluators as evals
from big_retrieval.evals.rankings import FOLDER as RANKINGS
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.report import page
from big_retrieval.report.example_files.folder import ExampleFolder
from big_retrieval.runtime import distributed, heartbeat, locks
from big_retrieval.runtime.extras import Extras
from big_retrieval.train import nonfinite, summary
from big_retrieval.train.checkpoint import Checkpoints
from big_retrieval.train.logging import Alarms, Metrics, table, write_results
from big_retrieval.train.profiling import Tracer
from big_retrieval.train.progress import TrainingProgress, time_left
from big_retrieval.train.run import TrainingRun, set_up
from big_retrieval.train.state import TrainState
from big_retrieval.train.step import is_logged
from big_retrieval.train.step_figures import pair_flops
from big_retrieval.train.stop import StopSignal

log = logging.getLogger(__name__)


def train(config: Config, workdir: Path, devices: Sequence[Any] | None = None) -> dict[str, Any]:
    """Trains, or goes on training, until `total_steps`, `stop_after` or a signal.

    Args:
      config: checked configuration.
      workdir: the run folder; made where it is missing, resumed where it holds this run.
      devices: all of all processes unless given.

    Returns:
      What results.json holds; empty when the run was interrupted before its end.

    Raises:
      UserError: see `set_up`; or a loss that is not finite.
    """
    started = time.monotonic()

    # ---- Devices, data, model, optimiser, evaluators; nothing is computed yet.
    run = set_up(config, workdir, devices)
    summary.log_summary(run)

    # ---- The state: restored where the folder has an intact checkpoint, else drawn from the seed.
    checkpoints = run.open_checkpoints()
    state, restored = run.restore(checkpoints)
    if restored == run.total_steps and (workdir / "results.json").exists():
        log.info(f"already finished: {workdir / 'results.json'} stays as it is")
        return json.loads((workdir / "results.json").read_text())
    saved = checkpoints.values(restored) if restored else {}
    metrics = Metrics(workdir, restored_step=restored, config=config, saved=saved)
    extras = Extras()  # what the run writes and can do without
    if restored:
        log.info(f"resumed from checkpoints/{restored}")
    with extras("environment.json"):
        summary.record_start(run, restored)

    # ---- Turn the crank.
    first = restored or 0
    last = max(first, min(run.total_steps, config.stop_after or run.total_steps))
    with closing(metrics), closing(checkpoints), StopSignal() as stop:
        _evaluate_start(run, state, restored, metrics, checkpoints, extras)
        state, step = _steps(run, state, range(first, last), metrics, checkpoints, stop, extras)
        checkpoints.wait()  # a signal must not cut the last one short
        evaluated, values = step, dict(metrics.last)
        if step == run.total_steps and config.final_weights == "best":
            del state  # a device may not have the memory for two
            state, evaluated = run.restore_best(checkpoints)
            with parallel.use(run.parts.mesh):
                due = set(run.evaluators)
                values |= _evaluate(run, state, evaluated, due, metrics, extras, final=True)
        results = {}
        if step == run.total_steps:
            results = {
                **{name: value for name, value in values.items() if name != "step"},
                **run.damage.metrics(),
                "params_sha256": params_sha256(state.params),
                "steps": run.total_steps,
                "evaluated_step": evaluated,
                "seconds": round(time.monotonic() - started, 2),
                "devices": run.parts.mesh.size,
                "parameter_count": sum(run.parts.parameters.values()),
                "resumed_from": restored,
            }
            metrics.finish(results)

    # ---- Done, or interrupted with everything saved.
    if not results:
        asked = step == config.stop_after
        how = "raise or drop config.stop_after" if asked else "repeat the same command"
        log.info(f"stopped after step {step} of {run.total_steps}; to go on, {how}")
        return {}
    write_results(workdir, results)
    log.info(f"finished {run.total_steps} steps; results in {workdir / 'results.json'}")
    summary.log_damage(run)
    if config.report and jax.process_index() == 0:
        with extras("the report"):
            log.info(f"report in {page.write(workdir)}")
    return results


def _steps(
    run: TrainingRun,
    state: TrainState,
    steps: range,
    metrics: Metrics,
    checkpoints: Checkpoints,
    stop: StopSignal,
    extras: Extras,
) -> tuple[TrainState, int]:
    """Runs the steps behind `steps.start` up to `steps.stop`; returns state and last step."""
    step, previous, values, config = steps.start, None, {}, run.config
    if not steps:
        return state, step
    step_of = run.compile_steps(steps)
    with extras("environment.json"):
        summary.record_steps(run, step_of.figures)
    distributed.barrier("the step is compiled")
    log.info("reading the first batches ...")
    progress = TrainingProgress(
        total=run.total_steps,
        batch_size=config.batch_size,
        pair_flops=functools.partial(pair_flops, config, run.parts.model),
        devices=run.parts.mesh.size,
        left=time_left(run, steps.start),
    )
    alarms = Alarms()
    reading = closing(run.batches(steps.start, steps.stop))
    tracing = closing(Tracer(config.profile, run.workdir, extras, run.total_steps))
    with reading as batches, tracing as tracer, parallel.use(run.parts.mesh):
        for step in range(steps.start + 1, steps.stop + 1):
            # The order of what follows is a contract: a checkpoint comes after all that was
            # logged and evaluated at its step, so a resumed run repeats nothing and skips nothing.
            tracer.before(step)
            batch = run.to_mesh(next(batches))
            with jax.transfer_guard("disallow"):  # the step waits for no array from elsewhere
                state, out = step_of(step)(state, batch)
            tracer.after(step, out)
            jax.block_until_ready(previous)  # at most two steps under way
            heartbeat.beat(step)
            previous = out["loss"]
            progress.step(batches.lap())
            due = run.due(step)
            stopping = stop.requested(step) or step == steps.stop
            logging = is_logged(config, step, run.total_steps)
            saving, row = run.saves(step, due) or stopping, {}
            if logging or saving or due:
                values = _read(run, state, out, checkpoints)
            if logging:
                row = {**values, **progress.measure(), **run.damage.metrics()}
                row["records"] = run.digest(step - 1)
                metrics.write(step, row)
                log.info(progress.line(step, row))
                alarms(run.parts.objective.warnings(row))
            with progress.paused(step):
                final = _is_final(run, step)
                try:
                    found = _evaluate(run, state, step, due, metrics, extras, final=final)
                except Exception:
                    _save_unevaluated(run, state, step, row, checkpoints)
                    raise
                if saving:
                    checkpoints.save(step, state, run.meta(step, found, row))
            if stopping:
                break
    return state, step


def _read(
    run: TrainingRun, state: TrainState, out: dict[str, jax.Array], checkpoints: Checkpoints
) -> dict[str, float]:
    """A step's metrics from the device; ends a run whose loss or gradient was not finite."""
    values = {name: value.item() for name, value in jax.device_get(out).items()}
    bad = int(values.pop("first_bad_step"))
    if bad >= 0:
        checkpoints.wait()
        nonfinite.stop(run, state, bad)
    return values


def _evaluate(
    run: TrainingRun,
    state: TrainState,
    step: int,
    due: set[str],
    metrics: Metrics,
    extras: Extras,
    *,
    final: bool,
) -> dict[str, float]:
    """Runs the evaluators that are due on the state of a step; at the end with their examples."""
    if not due:
        return {}
    locks.check()  # outputs of evaluators make their folders
    shows = final and run.config.report
    examples = ExampleFolder(run.workdir, step, extras) if shows else None
    rankings = run.workdir / RANKINGS if final else None
    found = evals.run(run.evaluators, due, state.weights, examples, rankings, extras, run.config)
    metrics.write(step, found)
    metrics.write_curves()
    table(found)
    return found


def _is_final(run: TrainingRun, step: int) -> bool:
    """Whether the numbers of the end are those of this step, whatever the others gave."""
    return step == run.total_steps and run.config.final_weights == "last"


def _save_unevaluated(
    run: TrainingRun,
    state: TrainState,
    step: int,
    row: Mapping[str, Any],
    checkpoints: Checkpoints,
) -> None:
    """Saves a step whose evaluation failed, so that a mistake in an evaluator costs no steps."""
    if jax.process_count() > 1:
        return  # the others may not have failed, and saving would wait for them
    checkpoints.save(step, state, run.meta(step, None, row))
    checkpoints.wait()
    log.info(f"step {step} is saved; repeat the same command to evaluate it and to go on")


def _evaluate_start(
    run: TrainingRun,
    state: TrainState,
    restored: int | None,
    metrics: Metrics,
    checkpoints: Checkpoints,
    extras: Extras,
) -> None:
    """Evaluates weights of `config.init` as step 0, or a restored step whose evaluation failed."""
    with parallel.use(run.parts.mesh):
        if restored is None and run.config.init and run.evaluators:
            log.info("evaluating the initial weights (config.init), as step 0")
            _evaluate(run, state, 0, set(run.evaluators), metrics, extras, final=False)
        if restored and not checkpoints.evaluated(restored):
            final, due = _is_final(run, restored), run.due(restored)
            values = _evaluate(run, state, restored, due, metrics, extras, final=final)
            checkpoints.record_evaluation(restored, values)
