"""Averages of parameters: exponential (ema), or of the last steps of every epoch (swa)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from big_retrieval.config import Ema, NoAveraging, Swa
from big_retrieval.train.schedules import Timeline

Averaging = NoAveraging | Ema | Swa


def first(averaging: Averaging, params: Any) -> dict[str, Any]:
    """Returns `ema` and `swa` of `TrainState` before the first step; {} for an unused average."""
    ema = jax.tree.map(jnp.copy, params) if isinstance(averaging, Ema) else {}
    swa = jax.tree.map(jnp.zeros_like, params) if isinstance(averaging, Swa) else {}
    return {"ema": ema, "swa": swa}


def snapshots(swa: Swa, length: int) -> tuple[int, int]:
    """Returns (start, every) for an epoch of `length` steps.

    The mean contains the parameters after each step s (from 1) of the epoch with s > start that is
    a multiple of `every`: at least `swa.count` steps, or all steps after start.
    """
    # Rounded, as (1 - 0.9) * 100 / 5 would be 1.9999999999999996, and its whole part 1.
    tail = round((1 - swa.start) * length, 9)
    return int(round(swa.start * length, 9)), max(1, int(tail / swa.count))


def decay_at(ema: Ema, step: jax.Array) -> jax.Array | float:
    """Returns the decay at a step (from 1): min(decay, (1 + step) / (10 + step)) with warm-up.

    `tf.train.ExponentialMovingAverage` has the same warm-up with `num_updates`.
    """
    return jnp.minimum(ema.decay, (1 + step) / (10 + step)) if ema.warmup else ema.decay


def initial_share(ema: Ema, steps: int) -> float:
    """Returns the weight of the initial parameters in the average after some steps, in [0, 1]."""
    if not ema.warmup:
        return ema.decay**steps
    first = np.arange(1, min(steps, 1000) + 1)  # the product is below 1e-20 long before step 1000
    return float(np.prod(np.minimum(ema.decay, (1 + first) / (10 + first))))


class Average:
    """Update of averages, a pure function inside of the compiled step."""

    def __init__(self, averaging: Averaging, timeline: Timeline) -> None:
        self._averaging = averaging
        if isinstance(averaging, Swa):
            self._begins = timeline.epochs  # [E + 1]
            windows = [snapshots(averaging, int(length)) for length in np.diff(self._begins)]
            self._starts, self._every = np.asarray(windows).T  # [E] each

    def update(self, params: Any, ema: Any, swa: Any, step: jax.Array) -> tuple[Any, ...]:
        """Returns (params, ema, swa, metrics) after a step; `step` (int32 []) counts from 1."""
        if isinstance(self._averaging, Ema):
            ema = optax.incremental_update(params, ema, 1 - decay_at(self._averaging, step))
        if not isinstance(self._averaging, Swa):
            return params, ema, swa, {}
        begins = jnp.asarray(self._begins)
        epoch = jnp.searchsorted(begins, step, side="left") - 1  # it ends with its last step
        index = step - begins[epoch]  # step of the epoch, from 1
        start, every = jnp.asarray(self._starts)[epoch], jnp.asarray(self._every)[epoch]
        entering = (index > start) & (index % every == 0)
        ending = step == begins[epoch + 1]
        count = jnp.maximum(0, index // every - start // every)  # in the mean, this step included

        def take(params: Any, swa: Any) -> tuple[Any, Any]:
            # The first entry of an epoch replaces the mean of the epoch before.
            old = jax.tree.map(lambda m, p: jnp.where(count > 1, m, jnp.zeros_like(p)), swa, params)
            mean = jax.tree.map(lambda m, p: m + (p - m) * (1 / count).astype(m.dtype), old, params)
            swa = jax.tree.map(lambda n, m: jnp.where(entering, n, m), mean, swa)
            return jax.tree.map(lambda p, m: jnp.where(ending, m, p), params, swa), swa

        # Most steps of an epoch do not read or write the mean.
        params, swa = jax.lax.cond(entering | ending, take, lambda p, s: (p, s), params, swa)
        return params, ema, swa, {"swa_count": count}
