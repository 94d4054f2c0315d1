"""Batch normalisation, with running averages for evaluations.

Batch statistics are plain means over all axes but the last. Towers and heads run under jit with
automatic sharding, so that they are those of the global batch on every mesh, or of the slice that
is encoded.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.models.layers import Dtype, Initializer, parameter, wide

EPSILON = 1e-5
MOMENTUM = 0.1  # what a batch adds to the running averages


@jax.custom_vjp
def normalise(
    x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Batch normalisation of channels by their own statistics, in float32 or wider.

    "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift".
    The derivative is written out because it needs no array of the size of x but x itself; it takes
    mean and variance for constants where they go into running averages.

    Args:
      x: [..., C].
      scale: [C].
      bias: [C].

    Returns:
      (y [..., C] in the type of x, mean [C], biased variance [C]).
    """
    return _normalise(x, scale, bias)[0]


def _normalise(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[Any, Any]:
    wider, axes = x.astype(wide(x.dtype)), tuple(range(x.ndim - 1))
    mean = jnp.mean(wider, axes)  # [C]
    var = jnp.mean(jnp.square(wider - mean), axes)  # [C]
    slope = scale.astype(wider.dtype) * jax.lax.rsqrt(var + EPSILON)
    y = (wider - mean) * slope + bias.astype(wider.dtype)
    return (y.astype(x.dtype), mean, var), (x, scale, mean, var)


def _normalise_backward(saved: Any, cotangents: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, var = saved
    dy, axes = cotangents[0].astype(mean.dtype), tuple(range(x.ndim - 1))
    inverse = jax.lax.rsqrt(var + EPSILON)
    z = (x.astype(mean.dtype) - mean) * inverse  # [..., C], normalised
    d_bias, d_scale = jnp.sum(dy, axes), jnp.sum(dy * z, axes)  # [C]
    count = x.size // x.shape[-1]
    dx = scale.astype(mean.dtype) * inverse * (dy - (d_bias + z * d_scale) / count)
    return dx.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(scale.dtype)


normalise.defvjp(_normalise, _normalise_backward)


class BatchNorm(nn.Module):
    """Batch normalisation; parameters `scale`, `bias`, collection `batch_stats` `mean`, `var`.

    Attributes:
      average: whether to normalise by the running averages and to leave them; else by the batch,
        and the averages move a tenth of the way to its mean and unbiased variance, where the
        collection is mutable.
      scale_init: what `scale` starts from.
      dtype: type of the result; statistics are in float32 or wider.
      param_dtype: type of the parameters.
    """

    average: bool
    scale_init: Initializer = initializers.ones
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, ..., C] -> [B, ..., C] in `dtype`."""
        shape, axes = x.shape[-1:], ("embed",)
        scale = parameter(self, "scale", self.scale_init, shape, axes, self.param_dtype)
        bias = parameter(self, "bias", initializers.zeros, shape, axes, self.param_dtype)
        kind = wide(self.param_dtype)
        mean: Any = self.variable("batch_stats", "mean", jnp.zeros, shape, kind)
        var: Any = self.variable("batch_stats", "var", jnp.ones, shape, kind)
        if self.average:
            wider = x.astype(wide(x.dtype))
            slope = scale * jax.lax.rsqrt(var.value + EPSILON)
            return ((wider - mean.value) * slope + bias).astype(self.dtype)
        y, batch_mean, batch_var = normalise(x, scale, bias)
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            count = x.size // x.shape[-1]
            unbiased = batch_var * (count / max(1, count - 1))
            mean.value = _towards(mean.value, batch_mean)
            var.value = _towards(var.value, unbiased)
        return y.astype(self.dtype)


def _towards(average: jax.Array, value: jax.Array) -> jax.Array:
    return (1 - MOMENTUM) * average + MOMENTUM * value.astype(average.dtype)
