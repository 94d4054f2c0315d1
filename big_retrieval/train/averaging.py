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
    """`TrainState.ema` and `TrainState.swa` before the first step; {} for what is not kept."""
    ema = jax.tree.map(jnp.copy, params) if isinstance(averaging, Ema) else {}
    swa = jax.tree.map(jnp.zeros_like, params) if isinstance(averaging, Swa) else {}
    return {"ema": ema, "swa": swa}


def snapshots(swa: Swa, length: int) -> tuple[int, int]:
    """Of an epoch of L = `length` steps: (start, every).

    After step s (from 1) of the epoch, the parameters enter the mean where s > start and s is a
    multiple of `every`. At least `swa.count` do, or all steps behind start.
    """
    # Rounded, as (1 - 0.9) * 100 / 5 would be 1.9999999999999996, and its whole part 1.
    tail = round((1 - swa.start) * length, 9)
    return int(round(swa.start * length, 9)), max(1, int(tail / swa.count))


def decay_at(ema: Ema, step: jax.Array) -> jax.Array | float:
    """Decay of the average at a step (from 1): min(decay, (1 + step) / (10 + step)) in warm-up.

    The same warm-up as in `tf.train.ExponentialMovingAverage` with `num_updates`.
    """
    return jnp.minimum(ema.decay, (1 + step) / (10 + step)) if ema.warmup else ema.decay


def initial_share(ema: Ema, steps: int) -> float:
    """Weight of the initial parameters in the average after this many steps, from 0 to 1."""
    if not ema.warmup:
        return ema.decay**steps
    first = np.arange(1, min(steps, 1000) + 1)  # the product is below 1e-20 long before step 1000
    return float(np.prod(np.minimum(ema.decay, (1 + first) / (10 + first))))


class Average:
    """What a step does to averages; pure, for use inside of the compiled step."""

    def __init__(self, averaging: Averaging, timeline: Timeline) -> None:
        """Prepares tables of the epochs."""
        self._averaging = averaging
        if isinstance(averaging, Swa):
            self._begins = timeline.epochs  # [E + 1]
            found = [snapshots(averaging, int(length)) for length in np.diff(self._begins)]
            self._starts, self._every = np.asarray(found).T  # [E] each

    def update(self, params: Any, ema: Any, swa: Any, step: jax.Array) -> tuple[Any, ...]:
        """Takes the parameters after a step in.

        Args:
          step: int32 [], finished steps, this one included.

        Returns:
          (params, ema, swa, metrics).
        """
        if isinstance(self._averaging, Ema):
            ema = optax.incremental_update(params, ema, 1 - decay_at(self._averaging, step))
        if not isinstance(self._averaging, Swa):
            return params, ema, swa, {}
        begins = jnp.asarray(self._begins)
        epoch = jnp.searchsorted(begins, step, side="left") - 1  # it ends with its last step
        place = step - begins[epoch]  # from 1
        start, every = jnp.asarray(self._starts)[epoch], jnp.asarray(self._every)[epoch]
        entering = (place > start) & (place % every == 0)
        ending = step == begins[epoch + 1]
        count = jnp.maximum(0, place // every - start // every)  # in the mean, this one included

        def take(params: Any, swa: Any) -> tuple[Any, Any]:
            # A fresh mean begins with its first entry: what the last epoch left does not count.
            old = jax.tree.map(lambda m, p: jnp.where(count > 1, m, jnp.zeros_like(p)), swa, params)
            mean = jax.tree.map(lambda m, p: m + (p - m) * (1 / count).astype(m.dtype), old, params)
            swa = jax.tree.map(lambda n, m: jnp.where(entering, n, m), mean, swa)
            return jax.tree.map(lambda p, m: jnp.where(ending, m, p), params, swa), swa

        # Most steps of an epoch read and write nothing of this.
        params, swa = jax.lax.cond(entering | ending, take, lambda p, s: (p, s), params, swa)
        return params, ema, swa, {"swa_count": count}
