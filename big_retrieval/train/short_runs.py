"""Warnings about averages, warm-ups and decays that are longer than the run."""

from collections.abc import Iterator, Mapping

import numpy as np

from big_retrieval.config import Config, Contrastive, Ema, Loss, Optimizer, Schedule, Swa
from big_retrieval.models.batch_norm import MOMENTUM
from big_retrieval.train.averaging import initial_share
from big_retrieval.train.groups import PATH, schedule_of
from big_retrieval.train.optimizer import Updates
from big_retrieval.train.schedules import Timeline, make_schedule

MAX_INITIAL = 0.1  # share of the initial weights in the final average that gives a warning
MAX_FINAL = 0.9  # share of the peak above which a decaying rate gives a warning at the end


def short_run_warnings(
    run_config: Config, updates: Updates, fresh_stats: bool = False
) -> list[str]:
    """Returns a warning for each average, warm-up or decay that the end of the run cuts short.

    Args:
      fresh_stats: True if batch norms have running averages that start at 0 and 1.
    """
    config, total = run_config.optimizer, updates.timeline.total_steps
    # key -> schedule, its first and last step, last step of the last phase that uses it
    used: dict[str, tuple[Schedule, tuple[int, int], int]] = {}
    for phase, span in enumerate(updates.spans):
        for name in sorted({updates.owner[param] for param in updates.trained(phase)}):
            key, schedule, steps = schedule_of(config, name, span, updates.timeline)
            used[key] = schedule, steps, span.stop
    messages = list(_average(config, updates.timeline))
    if fresh_stats and (share := (1 - MOMENTUM) ** total) >= MAX_INITIAL:
        messages.append(
            f"after {total:,} steps, {share:.0%} of the running averages of batch norms are still "
            "initial values, which evaluations use: train for longer"
        )
    for key, (schedule, steps, stop) in used.items():
        messages += _schedule(key, schedule, steps, stop, updates.timeline)
    return messages + list(_sparsity(run_config.losses, total))


def _average(config: Optimizer, timeline: Timeline) -> Iterator[str]:
    averaging, total = config.averaging, timeline.total_steps
    if isinstance(averaging, Ema) and (share := initial_share(averaging, total)) >= MAX_INITIAL:
        remedy = f"lower {PATH}.averaging.decay"
        if not averaging.warmup:
            remedy += f", or set {PATH}.averaging.warmup=True"
        yield (
            f"after {total:,} steps, {share:.0%} of the average (ema, decay {averaging.decay:g}) "
            f"are still the initial weights: train for longer, or {remedy}"
        )
    if isinstance(averaging, Swa) and timeline.epochs[1] > total:
        yield (
            f"{PATH}.averaging (swa) has no effect: the run of {total:,} steps ends before its "
            f"first epoch ({timeline.epochs[1]:,} steps)"
        )


def _schedule(
    key: str, schedule: Schedule, steps: tuple[int, int], stop: int, timeline: Timeline
) -> Iterator[str]:
    """Yields warnings about a schedule from steps[0] to steps[1] that is used until `stop`."""
    (start, end), last = steps, stop - 1  # finished steps before the last one
    share = float(make_schedule(schedule, end, start, timeline)(last))
    if schedule.interval == "epoch":  # all steps have the rate of the epoch's first step
        epoch = np.searchsorted(timeline.epochs, last, side="right") - 1
        last = max(start, int(timeline.epochs[epoch]))
    if schedule.warmup_steps > last - start:
        yield (
            f"{key}.warmup_steps is {schedule.warmup_steps:,}, but the schedule has "
            f"{stop - start:,} steps: the learning rate never reaches its peak, and is {share:.0%} "
            "of it at the last step"
        )
        return
    after = end - start - schedule.warmup_steps
    if schedule.cooldown_steps > after:
        yield (
            f"{key}.cooldown_steps is {schedule.cooldown_steps:,}, but only {after:,} steps follow "
            "the warm-up: the cool-down is shortened"
        )
    decays = schedule.type != "constant" or schedule.cooldown_steps
    if decays and stop == end > start + 1 and share > max(MAX_FINAL, schedule.end, schedule.floor):
        yield f"{key} ({schedule.type}) hardly decays: {share:.0%} of its peak at the last step"


def _sparsity(losses: Mapping[str, Loss], total: int) -> Iterator[str]:
    for name, loss in losses.items():
        if not isinstance(loss, Contrastive):
            continue
        warmup = loss.sparsity.warmup_steps
        if warmup >= total and (loss.sparsity.query or loss.sparsity.document):
            share = ((total - 1) / warmup) ** 2
            yield (
                f"config.losses.{name}.sparsity.warmup_steps is {warmup:,}, but the run has "
                f"{total:,} steps: the factors reach {share:.0%} of their values"
            )
