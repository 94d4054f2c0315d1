"""The training loop: from a configuration to a run folder. Start reading here.

A record becomes a row of a Batch (data/pipeline.py). Towers and heads compute embeddings of the
batch (models/towers.py), the objective computes one number from all embeddings
(losses/objective.py), and the step computes a new TrainState from its gradient (train/step.py).
`train` connects these parts and runs the steps, for the methods of all papers.
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
from big_retrieval.runtime import activity, distributed, locks
from big_retrieval.train import summary
from big_retrieval.train.logging import Alarms, Metrics, metric_lines, write_results
from big_retrieval.train.nonfinite import raise_nonfinite
from big_retrieval.train.profiling import Tracer
from big_retrieval.train.progress import TrainingProgress
from big_retrieval.train.run import TrainingRun, set_up
from big_retrieval.train.schedules import phase_at, title
from big_retrieval.train.state import TrainState
from big_retrieval.train.step import is_logged
from big_retrieval.train.step_figures import pair_flops
from big_retrieval.train.stop import StopSignal, log_unsaved

log = logging.getLogger(__name__)


def train(config: Config, workdir: Path, devices: Sequence[Any] | None = None) -> dict[str, Any]:
    """Trains, or continues training, until `total_steps`, `stop_after` or a signal.

    Args:
      workdir: the run folder; created if missing, resumed if it contains this run.
      devices: all devices of all processes by default.

    Returns:
      Content of results.json; empty if the run was interrupted before its end.

    Raises:
      UserError: see `set_up`; or a loss that is not finite.
    """
    started = time.monotonic()

    # ---- Devices, data, model, optimizer, evaluators; no computation.
    run = set_up(config, workdir, devices)
    summary.log_summary(run)

    # ---- The state: restored if the folder has an intact checkpoint, else drawn from the seed.
    state, restored = run.restore()
    if restored == run.total_steps and (workdir / "results.json").exists():
        log.info(f"already finished: {workdir / 'results.json'} is unchanged")
        return json.loads((workdir / "results.json").read_text())
    if restored:
        log.info(f"resumed from checkpoints/{restored}")
    first = restored or 0
    steps = range(first, max(first, min(run.total_steps, config.stop_after or run.total_steps)))
    compiled, figures = run.compile_steps(steps)
    distributed.barrier("the step is compiled")
    with run.extras("environment.json"):
        summary.record_start(run, restored, figures)

    # ---- The steps, with evaluations and checkpoints.
    saved = run.checkpoints.values(restored) if restored else {}
    metrics = Metrics(workdir, restored_step=restored, config=config, saved=saved)
    saving, on_mesh = closing(run.checkpoints), parallel.use(run.parts.mesh)
    with log_unsaved(workdir), closing(metrics), saving, StopSignal() as stop, on_mesh:
        _evaluate_start(run, state, restored, metrics)
        state, step = _steps(run, compiled, state, steps, metrics, stop)
        run.checkpoints.wait()  # before a signal can end the process
        evaluated, values = step, dict(metrics.last)
        if step == run.total_steps and config.final_weights == "best":
            del state  # a device may not have the memory for two
            state, evaluated = run.restore_best()
            due = set(run.evaluators)
            values |= _evaluate(run, state, evaluated, due, metrics, final=True)
        results = {}
        if step == run.total_steps:
            results = {
                **_results(run, state, values, started),
                "evaluated_step": evaluated,
                "resumed_from": restored,
            }
            metrics.finish(results)

    # ---- Finished, or interrupted with everything saved.
    if not results:
        requested = step == config.stop_after
        remedy = "raise or remove config.stop_after" if requested else "repeat the same command"
        log.info(f"stopped after step {step} of {run.total_steps}; to continue, {remedy}")
        return {}
    write_results(workdir, results)
    log.info(f"finished {run.total_steps} steps; results in {workdir / 'results.json'}")
    summary.log_damage(run)
    if config.report and jax.process_index() == 0:
        with run.extras("the report"):
            log.info(f"report in {page.write_report(workdir)}")
    return results


def _results(
    run: TrainingRun, state: TrainState, values: Mapping[str, Any], started: float
) -> dict[str, Any]:
    """Returns the metrics of the last step and of evaluators, with figures of the run."""
    return {
        **{name: value for name, value in values.items() if name != "step"},
        **run.damage.metrics(),
        "params_sha256": params_sha256(state.params),
        "steps": run.total_steps,
        "seconds": round(time.monotonic() - started, 2),
        "devices": run.parts.mesh.size,
        "parameter_count": sum(run.parts.parameters.values()),
    }


def _steps(
    run: TrainingRun,
    compiled: Mapping[int, jax.stages.Compiled],
    state: TrainState,
    steps: range,
    metrics: Metrics,
    stop: StopSignal,
) -> tuple[TrainState, int]:
    """Runs the steps steps.start + 1 .. steps.stop; returns the state and the last step."""
    step, previous, values, config = steps.start, None, {}, run.config
    if not steps:
        return state, step
    log.info("reading the first batches ...")
    progress = TrainingProgress(
        first=steps.start,
        total=run.total_steps,
        batch_size=config.batch_size,
        pair_flops=functools.partial(pair_flops, config, run.parts.model),
        devices=run.parts.mesh.size,
    )
    alarms, spans = Alarms(), run.parts.updates.spans
    reading = closing(run.batches(steps.start, steps.stop))
    tracing = closing(Tracer(config.profile, run.workdir, run.extras, run.total_steps))
    with reading as batches, tracing as tracer:
        for step in range(steps.start + 1, steps.stop + 1):
            # The order below is a contract: a checkpoint is saved after the logs and evaluations
            # of its step, so a resumed run neither repeats nor skips them.
            phase = phase_at(spans, step)
            if len(spans) > 1 and step - 1 in (steps.start, spans[phase].start):
                log.info(f"phase {title(spans[phase])}: up to step {spans[phase].stop:,}")
            tracer.before(step)
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                batch = run.to_mesh(next(batches))
                with jax.transfer_guard("disallow"):  # no implicit copies from the host
                    state, out = compiled[phase](state, batch)
            tracer.after(step, out)
            jax.block_until_ready(previous)  # at most two steps in flight
            activity.beat(step)
            previous = out["loss"]
            due = run.due(step)
            stopping = stop.requested(step) or step == steps.stop
            logging = is_logged(config, step, run.total_steps)
            saving, row = run.saves(step, due) or stopping, {}
            if logging or saving or due:
                values = _read(run, state, out)
            if logging:
                measured = progress.measure(step, batches.lap())
                row = {**values, **measured, **run.damage.metrics()}
                row["records"] = run.digest(step - 1)
                metrics.write(step, row)
                log.info(progress.line(step, row))
                alarms(run.parts.objective.warnings(row))
            with progress.paused():
                try:
                    evaluated = _evaluate(
                        run, state, step, due, metrics, final=_is_final(run, step)
                    )
                except Exception:
                    _save_unevaluated(run, state, step, row)
                    raise
                if saving:
                    run.checkpoints.save(step, state, run.meta(step, evaluated, row))
            if stopping:
                break
    return state, step


def _read(run: TrainingRun, state: TrainState, out: dict[str, jax.Array]) -> dict[str, float]:
    """Reads a step's metrics; ends the run if its loss or gradient was not finite."""
    values = {name: value.item() for name, value in jax.device_get(out).items()}
    bad = int(values.pop("first_bad_step"))
    if bad >= 0:
        run.checkpoints.wait()
        raise_nonfinite(run, state, bad)
    return values


def _evaluate(
    run: TrainingRun, state: TrainState, step: int, due: set[str], metrics: Metrics, *, final: bool
) -> dict[str, float]:
    """Runs the evaluators that are due on the state of a step; at the end with their examples."""
    if not due:
        return {}
    locks.check()  # evaluators write files
    shows = final and run.config.report
    examples = ExampleFolder(run.workdir, step, run.extras) if shows else None
    rankings = run.workdir / RANKINGS if final else None
    weights, config = state.weights, run.config
    values = evals.run(run.evaluators, due, weights, examples, rankings, run.extras, config)
    metrics.write(step, values)
    metrics.write_curves()
    metric_lines(values)
    return values


def _is_final(run: TrainingRun, step: int) -> bool:
    """Returns True if results.json has the metrics of this step."""
    return step == run.total_steps and run.config.final_weights == "last"


def _save_unevaluated(
    run: TrainingRun, state: TrainState, step: int, row: Mapping[str, Any]
) -> None:
    """Saves a step whose evaluation failed, so that an error in an evaluator costs no steps."""
    if jax.process_count() > 1:
        return  # other processes may not have failed, and saving would wait for them
    run.checkpoints.save(step, state, run.meta(step, None, row))
    run.checkpoints.wait()
    log.info(f"step {step} is saved; repeat the same command to evaluate it and to continue")


def _evaluate_start(
    run: TrainingRun, state: TrainState, restored: int | None, metrics: Metrics
) -> None:
    """Evaluates weights of `config.init` as step 0, or a restored step whose evaluation failed."""
    if restored is None and run.config.init and run.evaluators:
        log.info("evaluating the initial weights (config.init), as step 0")
        _evaluate(run, state, 0, set(run.evaluators), metrics, final=False)
    if restored and not run.checkpoints.evaluated(restored):
        final, due = _is_final(run, restored), run.due(restored)
        values = _evaluate(run, state, restored, due, metrics, final=final)
        run.checkpoints.record_evaluation(restored, values)
