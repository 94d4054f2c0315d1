"""Batch normalization, with running averages for evaluations.

Batch statistics are means over all axes except the last. Under automatic sharding they cover the
global batch, or the encoded slice of it, on every mesh. Rows without an optional field contain
zeros and are left out of the statistics. The model sets these rows (`counting`), so no tower or
head passes them to its batch norms.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.models.layers import Dtype, Initializer, parameter, wide

EPSILON = 1e-5
MOMENTUM = 0.1  # weight of a batch in the running averages
# While a model is traced: rows that have the encoded field, bool [B]; None for all.
_COUNTED: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("rows", default=None)


@dataclass(frozen=True)
class BatchNormed:
    """Keys of a tower or head with batch norms.

    List it before `Tower` or `Head` among the bases: it overrides their `normed`, `whole_batch` and
    `by_slice`.
    """

    normed: ClassVar[bool] = True
    frozen_stats: bool = False  # training uses the running averages and does not change them
    batch_stats: Literal["batch", "slice"] = "batch"  # "slice": rows of a slice of `microbatch`

    @property
    def whole_batch(self) -> bool:
        """True if a row's vector depends on all rows of the batch in training."""
        return self.normed and not self.frozen_stats and self.batch_stats == "batch"

    @property
    def by_slice(self) -> bool:
        """True if a row's vector depends on the rows of its micro-batch."""
        return self.normed and not self.frozen_stats and self.batch_stats == "slice"

    def check(self, config: Config, path: str) -> Iterator[str]:
        size = config.microbatch
        if size is not None and size < config.batch_size and self.whole_batch:
            yield (
                f"config.microbatch {size}: the batch norms of {path} need the whole batch at "
                f"once. Set {path}.batch_stats to 'slice' (statistics of {size} rows change the "
                f"training), set {path}.frozen_stats, or drop config.microbatch."
            )


@contextlib.contextmanager
def counting(present: jax.Array | None) -> Iterator[None]:
    """Limits batch statistics to the rows `present`, bool [B]; None for all rows."""
    token = _COUNTED.set(present)
    try:
        yield
    finally:
        _COUNTED.reset(token)


@jax.custom_vjp
def normalise(
    x: jax.Array, scale: jax.Array, bias: jax.Array, present: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalizes channels of x [B, ..., C] by their batch statistics, in float32 or wider.

    "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift".
    The derivative is written by hand, so that x is the only large array that it stores. The
    returned mean and variance have no gradient.

    Args:
      present: bool [B], the rows in the statistics, at least one; None for all.

    Returns:
      (y [B, ..., C] in the type of x, mean [C], biased variance [C]).
    """
    return _normalise(x, scale, bias, present)[0]


def _normalise(
    x: jax.Array, scale: jax.Array, bias: jax.Array, present: jax.Array | None = None
) -> tuple[Any, Any]:
    wider = x.astype(wide(x.dtype))
    mean = _mean(wider, present)  # [C]
    var = _mean(jnp.square(wider - mean), present)  # [C]
    slope = scale.astype(wider.dtype) * jax.lax.rsqrt(var + EPSILON)
    y = (wider - mean) * slope + bias.astype(wider.dtype)
    return (y.astype(x.dtype), mean, var), (x, scale, mean, var, present)


def _normalise_backward(saved: Any, cotangents: Any) -> tuple[Any, ...]:
    x, scale, mean, var, present = saved
    dy, axes = cotangents[0].astype(mean.dtype), tuple(range(x.ndim - 1))
    inverse = jax.lax.rsqrt(var + EPSILON)
    z = (x.astype(mean.dtype) - mean) * inverse  # [..., C]
    d_bias, d_scale = jnp.sum(dy, axes), jnp.sum(dy * z, axes)  # [C]
    by_statistics = (d_bias + z * d_scale) / _count(x, present)
    if present is not None:
        by_statistics = jnp.where(_by_row(present, x), by_statistics, 0)
    dx = scale.astype(mean.dtype) * inverse * (dy - by_statistics)
    return dx.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(scale.dtype), None


def _mean(x: jax.Array, present: jax.Array | None) -> jax.Array:
    axes = tuple(range(x.ndim - 1))
    if present is None:
        return jnp.mean(x, axes)
    return jnp.sum(x, axes, where=_by_row(present, x)) / _count(x, present)


def _count(x: jax.Array, present: jax.Array | None) -> Any:
    if present is None:
        return x.size // x.shape[-1]
    return jnp.sum(present) * (x.size // x.shape[0] // x.shape[-1])


def _by_row(present: jax.Array, x: jax.Array) -> jax.Array:
    return present.reshape(-1, *(1,) * (x.ndim - 1))


normalise.defvjp(_normalise, _normalise_backward)


class BatchNorm(nn.Module):
    """Batch normalization; parameters `scale`, `bias`, collection `batch_stats` `mean`, `var`."""

    # True normalizes by the running averages and does not change them. False normalizes by the
    # batch; the averages then move a tenth of the way to its mean and unbiased variance if the
    # collection is mutable.
    average: bool
    scale_init: Initializer = initializers.ones
    dtype: Dtype = jnp.float32  # of the result; statistics are in float32 or wider

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape, axes = x.shape[-1:], ("embed",)
        scale = parameter(self, "scale", self.scale_init, shape, axes)
        bias = parameter(self, "bias", initializers.zeros, shape, axes)
        dtype = wide(self.dtype)
        mean: Any = self.variable("batch_stats", "mean", jnp.zeros, shape, dtype)
        var: Any = self.variable("batch_stats", "var", jnp.ones, shape, dtype)
        if self.average:
            wider = x.astype(wide(x.dtype))
            slope = scale * jax.lax.rsqrt(var.value + EPSILON)
            return ((wider - mean.value) * slope + bias).astype(self.dtype)
        present, some = _counted(x), None
        if present is not None:
            # If no row counts, all rows do, and the averages do not change.
            some = jnp.any(present)
            present = present | ~some
        y, batch_mean, batch_var = normalise(x, scale, bias, present)
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            count = _count(x, present)
            degrees = max(1, count - 1) if present is None else jnp.maximum(1, count - 1)
            unbiased = batch_var * (count / degrees)
            mean.value = _towards(mean.value, batch_mean, some)
            var.value = _towards(var.value, unbiased, some)
        return y.astype(self.dtype)


def _counted(x: jax.Array) -> jax.Array | None:
    """Returns the rows of x [B, ..., C] that have the encoded field; None for all."""
    present = _COUNTED.get()
    if present is not None and present.shape != x.shape[:1]:
        raise UserError(
            f"A batch norm got an array of the shape {x.shape} in a batch of {present.size} rows "
            "that may lack the field. The first axis must be the rows."
        )
    return present


def _towards(average: jax.Array, value: jax.Array, some: jax.Array | None) -> jax.Array:
    new = (1 - MOMENTUM) * average + MOMENTUM * value.astype(average.dtype)
    return new if some is None else jnp.where(some, new, average)
