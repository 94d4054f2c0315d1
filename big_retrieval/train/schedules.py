"""Learning-rate schedules, and where epochs begin in steps."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.config import Schedule

# From the number of finished steps to a number; like `optax.Schedule`.
Rate = Callable[[jax.Array | int], jax.Array]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The length of a run, in steps and epochs.

    Epoch e begins at step round(e * steps_per_epoch), so that a run of `total_epochs` ends with an
    epoch. Phases, averages, schedules, evaluations and checkpoints all go by this.

    Attributes:
      total_steps: of the run.
      steps_per_epoch: records / batch size; None: not known, as in a plan, which needs no times.
    """

    total_steps: int
    steps_per_epoch: float | None = None

    def step_of(self, epoch: float) -> int:
        """The finished steps at which an epoch begins; halves are rounded to even numbers."""
        assert self.steps_per_epoch is not None
        return round(epoch * self.steps_per_epoch)

    @functools.cached_property
    def epochs(self) -> np.ndarray:
        """int64 [E + 1]: finished steps at the beginning of each epoch, and at the last one's end.

        The last epoch ends with the run or after it. Without `steps_per_epoch` the run is one
        epoch.
        """
        if self.steps_per_epoch is None:
            return np.asarray([0, self.total_steps])
        if self.steps_per_epoch < 1:  # an epoch ends with every step
            return np.arange(self.total_steps + 1)
        count = math.ceil(self.total_steps / self.steps_per_epoch)
        # One more, as boundaries are rounded.
        steps = np.unique([self.step_of(epoch) for epoch in range(count + 2)])
        end = int(np.searchsorted(steps, self.total_steps))  # the first one not before it
        return steps[: end + 1]

    def all_ends(self, every: float) -> list[int]:
        """The steps of the run for which `ends` is true, ascending."""
        if not every:
            return []
        assert self.steps_per_epoch is not None
        every = max(every, 1 / self.steps_per_epoch)  # more often than every step is every step
        most = int(self.total_steps / (every * self.steps_per_epoch)) + 2
        steps = (self.step_of(count * every) for count in range(1, most))
        return [step for step in steps if step <= self.total_steps]

    def ends(self, step: int, every: float) -> bool:
        """Whether a step is the last one of a number of epochs that is a multiple of `every`.

        Args:
          step: finished steps, from 1.
          every: epochs; 0: never.
        """
        if not every:
            return False
        assert self.steps_per_epoch is not None
        nearest = round(step / (every * self.steps_per_epoch))
        return step == self.step_of(nearest * every)


def make_schedule(
    config: Schedule, stop: int, start: int = 0, timeline: Timeline | None = None
) -> Rate:
    """The learning-rate factor by finished steps, between 0 and 1.

    The warm-up rises linearly from 0 to 1; the body runs from the end of the warm-up to `stop`; the
    cool-down takes what the body would give at its start linearly to `end`. Both are clipped to
    the length.

    Args:
      config: kind and lengths.
      stop: the step at which it ends.
      start: the step at which it begins.
      timeline: of the run; for schedules that change with the epoch.
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
