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
from big_retrieval.runtime.messages import count_of
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
        "length": f"{count_of(run.total_steps, 'step')}, {epochs:.1f} epochs",
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
    config, texts = run.config, []
    for name, field in config.encoded.items():
        rows, width = field.head.embedding_shape(config, name, run.tokenizer.vocab_size)
        texts.append(f"{name} {rows} x {width:,} ({config.topology_of(name)})")
    return ", ".join(texts)


def _optimizer(run: TrainingRun) -> dict[str, str]:
    """Returns the schedule, and phases, groups and averages, if any."""
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
            f"{name or 'others'} {count}{' (frozen)' if name in frozen else ''}"
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
    cut = int(timeline.epochs[-1]) != timeline.total_steps
    last = "; the last epoch is incomplete and keeps its parameters" if cut else ""
    return (
        f"swa, mean of every {every:,} steps after step {start:,} of {length:,} in an epoch; it "
        f"replaces the parameters at the end of each epoch{last}"
    )


def log_damage(run: TrainingRun) -> None:
    """Logs the number of damaged records, if any."""
    if run.damage.count:
        log.info(f"{run.damage.count:,} damaged records were replaced, see {run.damage.file}")


def _data(run: TrainingRun) -> dict[str, str]:
    """Returns the data, and the shares of a mixture."""
    source, vocabulary = run.source, run.tokenizer.vocab_size
    lines = {"data": f"{source.name}, {count_of(len(source), 'record')}, vocabulary {vocabulary:,}"}
    if isinstance(source, MixedSource):
        parts = []
        for name, share in source.shares.items():
            passes = share * len(source) / len(source.parts[name])
            parts.append(f"{name} {share:.1%} ({passes:.1f} passes an epoch)")
        lines["mixture"] = ", ".join(parts)
    return lines


def record_start(run: TrainingRun, restored: int | None, figures: list[dict[str, Any]]) -> None:
    """Adds this start of a run to environment.json, on the first process.

    Args:
      restored: step from which the run continues; None for a new run.
      figures: `step_figures.log_step` of each remaining phase.
    """
    if jax.process_index() != 0:
        return
    path, mesh = run.workdir / "environment.json", run.parts.mesh
    start = {
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
        "resumed_from": restored,
        "compiled_steps": figures,
    }
    try:
        starts = list(json.loads(path.read_text())["starts"])
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
        starts = []
    write_bytes(path, to_json({"starts": [*starts, start][-MAX_STARTS:]}))


def command(argv: list[str]) -> str:
    """Returns the command line as a user types it."""
    if argv[0].startswith("big-retrieval "):
        return shlex.join([*argv[0].split(), *argv[1:]])
    program = Path(argv[0])
    if program.parent.name == "big_retrieval":
        return shlex.join(["python", "-m", f"big_retrieval.{program.stem}", *argv[1:]])
    return shlex.join(argv)
