"""Summary of a run at its start: log lines, and environment.json of the run folder."""

import json
import logging
import math
import platform
import shlex
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

import big_retrieval
from big_retrieval.config import Ema, Swa
from big_retrieval.data.mixture import MixedSource
from big_retrieval.inference.fingerprint import versions
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime import machine
from big_retrieval.train.averaging import Averaging, snapshots
from big_retrieval.train.run import TrainingRun
from big_retrieval.train.schedules import Timeline, make_schedule, title
from big_retrieval.train.short_runs import short_run_warnings

MAX_STARTS = 50  # newest starts that environment.json keeps
log = logging.getLogger(__name__)


def log_summary(run: TrainingRun) -> None:
    """Logs devices, mesh, parameters, batch, data, length and warnings."""
    config, mesh, parameters = run.config, run.parts.mesh, run.parts.parameters
    groups = mesh.shape["data"] * mesh.shape["fsdp"]
    device = mesh.devices.flat[0].device_kind
    axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    parts = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    records, batch = len(run.source), config.batch_size
    epochs = run.total_steps * batch / records
    negatives = batch * (1 + config.negatives.count) - 1
    lines = {
        "version": f"big_retrieval {big_retrieval.__version__}, jax {jax.__version__}",
        "devices": f"{mesh.size} x {device}, {jax.process_count()} process(es)",
        "mesh": axes,
        "parameters": f"{sum(parameters.values()):,} ({parts})",
        "computation": config.dtype,
        "embeddings": _embeddings(run),
        "batch": f"{batch:,} global, {batch // groups:,} a device, {negatives:,} negatives a query",
        **_data(run),
        "length": f"{run.total_steps:,} steps, {epochs:.1f} epochs",
        **_optimizer(run),
        "run folder": str(run.workdir),
    }
    fresh_stats = bool(run.parts.abstract.batch_stats) and not config.init
    warnings = short_run_warnings(config, run.parts.updates, fresh_stats)
    if batch > records:
        warnings.append(
            f"config.batch_size {batch:,} is more than the {records:,} records: a record that is "
            "twice in a batch is its own false negative"
        )
    width, rows = max(len(name) for name in lines), [*lines.items()]
    rows += [("warning", text) for text in warnings]
    log.info("\n".join(f"{name:<{width}}  {text}" for name, text in rows))


def _embeddings(run: TrainingRun) -> str:
    """Returns shape and topology of each field's embeddings: "image 4 x 16 (sphere)"."""
    config, size = run.config, run.tokenizer.vocab_size
    shapes = {
        name: field.head.embedding_shape(config, name, size)
        for name, field in config.encoded.items()
    }
    return ", ".join(
        f"{name} {rows} x {width:,} ({config.topology_of(name)})"
        for name, (rows, width) in shapes.items()
    )


def _optimizer(run: TrainingRun) -> dict[str, str]:
    """Returns the run's schedule, and its phases, groups and averages if it has any."""
    updates, config = run.parts.updates, run.config.optimizer
    share = make_schedule(config.schedule, run.total_steps, timeline=updates.timeline)
    lines = {
        "schedule": f"{config.schedule.type}, peak {config.lr:g}, "
        f"{float(share(run.total_steps - 1)):.1%} of it at the last step"
    }
    if len(updates.spans) > 1:
        phases = (f"{title(span)} from step {span.start + 1:,}" for span in updates.spans)
        lines["phases"] = ", ".join(phases)
    if config.groups:
        counts = Counter(updates.owner.values())
        frozen = [name for name, group in config.groups.items() if group.frozen]
        groups = (
            f"{name or 'the rest'} {count}{' (frozen)' if name in frozen else ''}"
            for name, count in sorted(counts.items(), key=lambda item: (not item[0], item[0]))
        )
        lines["groups"] = f"{', '.join(groups)} arrays"
    average = _averaging(config.averaging, updates.timeline)
    return lines | ({"averaging": average} if average else {})


def _averaging(averaging: Averaging, timeline: Timeline) -> str:
    """Returns the kind of average and its steps; "" without averaging."""
    if isinstance(averaging, Ema):
        return f"ema, decay {averaging.decay:g}{', with warm-up' if averaging.warmup else ''}"
    if not isinstance(averaging, Swa):
        return ""
    length = math.floor(np.median(np.diff(timeline.epochs)))
    start, every = snapshots(averaging, length)
    ends = int(timeline.epochs[-1])
    rest = "" if ends == timeline.total_steps else "; the last epoch is cut and keeps its own"
    return (
        f"swa, of {length:,} steps an epoch every {every:,} behind step {start:,}; the mean "
        f"replaces the parameters at each epoch's end{rest}"
    )


def log_damage(run: TrainingRun) -> None:
    """Logs the number of damaged records, if any."""
    if run.damage.count:
        log.info(
            f"{run.damage.count:,} damaged records were replaced: {run.damage.file} names them"
        )


def _data(run: TrainingRun) -> dict[str, str]:
    """Returns the records, and the shares of a mixture."""
    source, vocabulary = run.source, run.tokenizer.vocab_size
    lines = {"data": f"{source.name}, {len(source):,} records, vocabulary {vocabulary:,}"}
    if isinstance(source, MixedSource):
        parts = (
            f"{name} {share:.1%} ({share * len(source) / len(source.parts[name]):.1f} passes an "
            "epoch)"
            for name, share in source.shares.items()
        )
        lines["mixture"] = ", ".join(parts)
    return lines


def record_start(run: TrainingRun, restored: int | None, figures: list[dict[str, Any]]) -> None:
    """Adds this start of a run to environment.json, on the first process.

    Args:
      restored: step from which the run continues; None for a new run.
      figures: of the compiled step of each remaining phase.
    """
    if jax.process_index() != 0:
        return
    path = run.workdir / "environment.json"
    start = {**describe(run), "resumed_from": restored, "compiled_steps": figures}
    write_bytes(path, to_json({"starts": [*_earlier(path), start][-MAX_STARTS:]}))


def describe(run: TrainingRun) -> dict[str, Any]:
    """Returns time, command, versions, devices, and sizes of data and model."""
    mesh = run.parts.mesh
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "command": command(sys.argv),
        "versions": versions(),
        "platform": platform.platform(),
        "commit": machine.commit(),
        "processor": machine.processor(),
        "cores": machine.cores(),
        "devices": mesh.size,
        "device": mesh.devices.flat[0].device_kind,
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        "parameters": dict(run.parts.parameters),
        "parameter_count": sum(run.parts.parameters.values()),
        "source": run.source.name,
        "records": len(run.source),
        "vocab_size": run.tokenizer.vocab_size,
        "total_steps": run.total_steps,
    }


def command(argv: list[str]) -> str:
    """Returns the command line in a form that can be typed again."""
    if argv[0].startswith("big-retrieval "):
        return shlex.join([*argv[0].split(), *argv[1:]])
    program = Path(argv[0])
    if program.parent.name == "big_retrieval":
        return shlex.join(["python", "-m", f"big_retrieval.{program.stem}", *argv[1:]])
    return shlex.join(argv)


def _earlier(path: Path) -> list[Any]:
    """Returns the entries of environment.json; none if the file is missing or damaged."""
    try:
        starts = json.loads(path.read_text())["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return starts if isinstance(starts, list) else []
