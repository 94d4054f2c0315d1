"""The block that a run starts with: what runs where, on what, for how long."""

import logging
from collections import Counter

import jax

import big_retrieval
from big_retrieval.data.mixture import MixedSource
from big_retrieval.runtime import chips
from big_retrieval.train.averaging import describe
from big_retrieval.train.phases import title
from big_retrieval.train.setup import TrainingRun

log = logging.getLogger(__name__)


def start_up(run: TrainingRun) -> None:
    """Prints devices, mesh, parameters, batch, memory, data, length and warnings."""
    config, mesh, parameters = run.config, run.parts.mesh, run.parts.parameters
    groups = mesh.shape["data"] * mesh.shape["fsdp"]
    device = mesh.devices.flat[0].device_kind
    axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    parts = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    records, batch = len(run.source), config.batch_size
    epochs = run.total_steps * batch / records
    wrong = batch * (1 + config.negatives.count) - 1  # documents, for each query
    lines = {
        "version": f"big_retrieval {big_retrieval.__version__}, jax {jax.__version__}",
        "devices": f"{mesh.size} x {device}, {jax.process_count()} process(es)",
        "mesh": axes,
        "parameters": f"{sum(parameters.values()):,} ({parts})",
        "computation": f"{config.dtype}, topology {config.topology}",
        "batch": f"{batch:,} global, {batch // groups:,} a device, {wrong:,} negatives a query",
        **_memory(run),
        **_data(run),
        "length": f"{run.total_steps:,} steps, {epochs:.1f} epochs",
        **_optimizer(run),
        "run folder": str(run.workdir),
    }
    if batch > records:
        lines["warning"] = (
            f"config.batch_size {batch:,} is more than the {records:,} records: a record that is "
            "twice in a batch is its own false negative"
        )
    width = max(len(name) for name in lines)
    log.info("\n".join(f"{name:<{width}}  {text}" for name, text in lines.items()))


def _optimizer(run: TrainingRun) -> dict[str, str]:
    """Phases, groups and averages, where there are any."""
    updates, lines = run.parts.updates, {}
    if len(updates.spans) > 1:
        phases = (f"{title(span)} from step {span.start + 1:,}" for span in updates.spans)
        lines["phases"] = ", ".join(phases)
    if run.config.optimizer.groups:
        counts = Counter(updates.owner.values())
        frozen = [name for name, group in run.config.optimizer.groups.items() if group.frozen]
        groups = (
            f"{name or 'the rest'} {count}{' (frozen)' if name in frozen else ''}"
            for name, count in sorted(counts.items(), key=lambda item: (not item[0], item[0]))
        )
        lines["groups"] = f"{', '.join(groups)} arrays"
    average = describe(run.config.optimizer.averaging, updates.timeline)
    return lines | ({"averaging": average} if average else {})


def damage(run: TrainingRun) -> None:
    """Says how many damaged records there were, where there were any."""
    if run.damage.count:
        log.info(
            f"{run.damage.count:,} damaged records were replaced: {run.damage.file} names them"
        )


def _data(run: TrainingRun) -> dict[str, str]:
    """The records, and the shares of a mixture."""
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


def _memory(run: TrainingRun) -> dict[str, str]:
    """What a device has to hold, against what it has where the table of chips knows that."""
    from big_retrieval.plan import memory, report  # plans are made of the trainer's own step

    device = run.parts.mesh.devices.flat[0]
    chip = chips.of_kind(device.device_kind, jax.local_device_count())
    per_device = memory.per_device(run.parts, device.platform)
    return report.brief(per_device, None if chip is None else chip.usable)
