"""Epochs, phases and learning-rate schedules of a run, by finished steps."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.config import Phase, Schedule
from big_retrieval.errors import UserError

PHASES = "config.optimizer.phases"
# From the number of finished steps to a number; like `optax.Schedule`.
Rate = Callable[[jax.Array | int], jax.Array]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The length of a run, in steps and epochs.

    Epoch e begins at step round(e * steps_per_epoch), so that a run of `total_epochs` ends with an
    epoch.
    """

    total_steps: int
    steps_per_epoch: float | None = None  # records / batch size; None if unknown, as in a plan

    def step_of(self, epoch: float) -> int:
        """Returns the finished steps at which an epoch begins; halves round to even numbers."""
        assert self.steps_per_epoch is not None
        return round(epoch * self.steps_per_epoch)

    @functools.cached_property
    def epochs(self) -> np.ndarray:
        """Finished steps at the beginning of each epoch and at the last epoch's end, int64 [E + 1].

        The last epoch ends with the run or after it. If `steps_per_epoch` is None, the run is one
        epoch.
        """
        if self.steps_per_epoch is None:
            return np.asarray([0, self.total_steps])
        if self.steps_per_epoch < 1:  # an epoch ends with every step
            return np.arange(self.total_steps + 1)
        count = math.ceil(self.total_steps / self.steps_per_epoch)
        # One more, as boundaries are rounded.
        steps = np.unique([self.step_of(epoch) for epoch in range(count + 2)])
        end = int(np.searchsorted(steps, self.total_steps))
        return steps[: end + 1]

    def ends(self, step: int, every: float) -> bool:
        """Returns True if a step (from 1) ends a multiple of `every` epochs; 0 disables."""
        if not every:
            return False
        assert self.steps_per_epoch is not None
        nearest = round(step / (every * self.steps_per_epoch))
        return step == self.step_of(nearest * every)


@dataclasses.dataclass(frozen=True)
class Span:
    """A phase with its steps in the run: start + 1 .. stop."""

    name: str  # "" before the first phase, or in a run without phases
    start: int
    stop: int
    phase: Phase


def spans(phases: Mapping[str, Phase], timeline: Timeline) -> tuple[Span, ...]:
    """Returns the phases in order, without gaps, from step 0 to the end of the run.

    If the epochs of the timeline are unknown, phases take equal shares of the run.

    Raises:
      UserError: a phase begins at the run's end or later, or two phases begin at one step.
    """
    if timeline.steps_per_epoch is None:
        starts = _equal_shares(phases, timeline.total_steps)
    else:
        starts = {name: _start(phase, timeline) for name, phase in phases.items()}
    order = sorted(starts, key=lambda name: (starts[name], name))
    for before, name in itertools.pairwise(order):
        if starts[before] == starts[name]:
            raise UserError(
                f"{PHASES}.{before} and {PHASES}.{name} both begin at step {starts[name]}. Start "
                "one of them later."
            )
    for name in order:
        if starts[name] >= timeline.total_steps:
            raise UserError(
                f"{PHASES}.{name} begins at step {starts[name]:,}, but the run ends at step "
                f"{timeline.total_steps:,}. Start the phase earlier, or train for longer."
            )
    if not order or starts[order[0]] > 0:
        order, starts = ["", *order], {"": 0, **starts}
    stops = [starts[name] for name in order[1:]] + [timeline.total_steps]
    return tuple(
        Span(name, starts[name], stop, phases.get(name, Phase()))
        for name, stop in zip(order, stops, strict=True)
    )


def _start(phase: Phase, timeline: Timeline) -> int:
    if phase.start_step is not None:
        return phase.start_step
    assert phase.start_epoch is not None
    return timeline.step_of(phase.start_epoch)


def _equal_shares(phases: Mapping[str, Phase], total: int) -> dict[str, int]:
    """Returns starts of phases in their order, for an unknown length of an epoch."""
    keys = {name: x.start_step or x.start_epoch or 0 for name, x in phases.items()}
    order = sorted(phases, key=lambda name: (keys[name], name))
    first = 0 if order and keys[order[0]] == 0 else 1
    return {
        name: (index + first) * total // (len(order) + first) for index, name in enumerate(order)
    }


def phase_at(spans: Sequence[Span], step: int) -> int:
    """Returns the index of the phase of a step (from 1)."""
    return next(i for i, span in enumerate(spans) if span.start < step <= span.stop)


def title(span: Span) -> str:
    """Returns a phase's name for log lines."""
    return repr(span.name) if span.name else "before the first phase"


def make_schedule(
    config: Schedule, stop: int, start: int = 0, timeline: Timeline | None = None
) -> Rate:
    """Returns the learning-rate factor, 0 to 1, as a function of finished steps, start to stop.

    The warm-up rises linearly from 0 to 1. The curve of `config.type` runs from the end of the
    warm-up to `stop`. The cool-down goes linearly from the value of the curve at its start to
    `end`. Warm-up and cool-down are clipped to the length. If the factor changes with the epoch,
    `timeline` is required.
    """
    total = stop - start
    warmup = min(config.warmup_steps, total)
    cooldown = min(config.cooldown_steps, total - warmup)
    length = max(1, total - warmup)

    def body(step: jax.Array) -> jax.Array:
        progress = jnp.clip((step - warmup) / length, 0.0, 1.0)
        if config.type == "cosine":
            # (1 + cos(pi p)) / 2, without its loss of digits near the end
            return config.end + (1 - config.end) * jnp.sin(0.5 * jnp.pi * (1 - progress)) ** 2
        if config.type == "linear":
            return config.end + (1 - config.end) * (1 - progress)
        if config.type == "rsqrt":
            return jnp.sqrt(config.timescale / (config.timescale + jnp.maximum(0, step - warmup)))
        assert config.type == "constant", config.type
        return jnp.ones_like(progress)

    def schedule(count: jax.Array | int) -> jax.Array:
        count = jnp.asarray(count)
        if config.interval == "epoch":
            assert timeline is not None
            begins = jnp.asarray(timeline.epochs)  # [E + 1]
            epoch = jnp.searchsorted(begins, count, side="right") - 1
            count = jnp.maximum(begins[epoch], start)  # a phase may begin within an epoch
        step = (count - start if start else count).astype(float)  # float32, unless jax has wider
        last = total - cooldown
        value = body(jnp.minimum(step, last) if cooldown else step)
        if cooldown:
            share = jnp.clip((step - last) / cooldown, 0.0, 1.0)
            value = value * (1 - share) + config.end * share
        value = jnp.maximum(value, config.floor)
        return value * jnp.minimum(1.0, step / warmup) if warmup else value

    return schedule
