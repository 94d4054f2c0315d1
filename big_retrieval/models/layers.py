"""Linen building blocks of the transformer towers.

* Parameters have logical axis names: "embed" (model width), "mlp", "heads" (the joined H * d axis),
  "vocab", "position", "class_token", "patch_in", "projection". Activations between blocks have
  ("batch", "length", "embed_act").
* `dtype` is the type of the computation. Parameters and the statistics of LayerNorm and softmax are
  in float32, or in `dtype` if it is wider.
* Random bits come from the rng collection "dropout", only in training with a rate above 0. They
  depend on the row's index in the global batch (`rows`), so slices and meshes do not change them.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.runtime.platform import traced_platform

Initializer = initializers.Initializer
Dtype = Any
# Score or logit of a position that takes no part. Not -inf: softmax, elu1p and log1p_relu map it to
# 0, with slope 0, and rows with only such values stay finite.
EXCLUDED = -1e30


def wide(dtype: Dtype) -> Dtype:
    """Returns float32, or `dtype` if it is wider: the type of statistics and accumulators."""
    return jnp.promote_types(dtype, jnp.float32)


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """Computes the exact GELU, x Phi(x), elementwise in float32 or wider.

    Uses erf, and the derivative Phi(x) + x phi(x) as one expression: automatic differentiation of
    the usual erfc form keeps three arrays and takes four times as long on CPUs.
    """
    wider = x.astype(wide(x.dtype))
    return (wider * _normal_cdf(wider)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    # The barrier keeps XLA from storing the erf of the forward pass: x is enough.
    wider = jax.lax.optimization_barrier(x).astype(wide(x.dtype))
    density = jnp.exp(-0.5 * jnp.square(wider)) * (2 * math.pi) ** -0.5
    slope = _normal_cdf(wider) + wider * density
    return gelu(x), tangent * slope.astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5)


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # OpenAI's CLIP
    "relu": jax.nn.relu,
}


def uniform(bound: float) -> Initializer:
    """Returns an initializer that draws from U(-bound, bound)."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> Any:
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


@dataclasses.dataclass(frozen=True)
class BlockInit:
    """Initializers of a block's kernels and MLP biases; attention biases start at 0."""

    qkv: Initializer
    out: Initializer
    fc1: Initializer
    fc2: Initializer
    fc1_bias: Initializer
    fc2_bias: Initializer

    @classmethod
    def vision(cls, width: int, mlp: int) -> "BlockInit":
        """Returns the initializers of the published vision tower.

        Query, key and value start as parts of one [3 W, W] Xavier-uniform matrix. All other kernels
        and the MLP biases start from U(+-1 / sqrt(fan in)).
        """
        narrow, broad = uniform(width**-0.5), uniform(mlp**-0.5)
        return cls(uniform(math.sqrt(1.5 / width)), narrow, narrow, broad, narrow, broad)

    @classmethod
    def text(cls, width: int, depth: int) -> "BlockInit":
        """Returns CLIP's initializers for text: normal, outputs scaled by 1 / sqrt(2 depth)."""
        residual = initializers.normal((2 * depth * width) ** -0.5)
        zeros = initializers.zeros
        return cls(
            qkv=initializers.normal(width**-0.5),
            out=residual,
            fc1=initializers.normal((2 * width) ** -0.5),
            fc2=residual,
            fc1_bias=zeros,
            fc2_bias=zeros,
        )


class Dense(nn.Module):
    """x @ kernel + bias over the last axis: [..., I] -> [..., features]."""

    features: int
    axes: tuple[str, str]  # logical names of the kernel's two axes; the bias has the second
    kernel_init: Initializer
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True
    out_dtype: Dtype = None  # type of the result; None for `dtype`
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        out = self.out_dtype or self.dtype
        shape = (x.shape[-1], self.features)
        kernel = parameter(self, "kernel", self.kernel_init, shape, self.axes)
        y = flat_matmul(x, kernel, self.dtype, out)  # [..., features]
        if not self.use_bias:
            return y
        axes = self.axes[1:]
        bias = parameter(self, "bias", self.bias_init, shape[1:], axes)
        return y + bias.astype(out)


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, biased variance, statistics in float32 or wider."""

    epsilon: float = 1e-5
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape, axes = x.shape[-1:], ("embed",)
        scale = parameter(self, "scale", initializers.ones, shape, axes)
        bias = parameter(self, "bias", initializers.zeros, shape, axes)
        one_pass = jnp.finfo(x.dtype).bits < 32 and traced_platform() != "cpu"
        x = x.astype(wide(jnp.promote_types(x.dtype, self.dtype)))
        x = standardize(x, self.epsilon, one_pass=one_pass)
        return (x * scale.astype(x.dtype) + bias.astype(x.dtype)).astype(self.dtype)


def standardize(x: jax.Array, epsilon: float, *, one_pass: bool = False) -> jax.Array:
    """Computes (x - mean) / sqrt(variance + epsilon) over the last axis of x, float32 or wider.

    The variance is biased. With `one_pass` it is mean(x^2) - mean(x)^2, which reads x once. Its
    error is about 2^-24 mean^2 / variance; rounding x to bfloat16 (2^-18 mean^2 / variance) or to
    float16 (2^-22 mean^2 / variance) costs more.
    """
    mean = jnp.mean(x, axis=-1, keepdims=True)
    if one_pass:
        square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        variance = jnp.maximum(square - jnp.square(mean), 0)
        return (x - mean) * jax.lax.rsqrt(variance + epsilon)
    x = x - mean
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


class FeedForward(nn.Module):
    """Two dense layers, fc1 and fc2, with an activation of `ACTIVATIONS` between them."""

    hidden: int
    inits: BlockInit
    activation: str = "gelu"
    dropout: float = 0.0  # rate in effect after the activation: 0 outside training
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, rows: jax.Array | None = None) -> jax.Array:
        init_1, init_2 = (
            (self.inits.fc1, self.inits.fc1_bias),
            (self.inits.fc2, self.inits.fc2_bias),
        )
        fc1 = Dense(self.hidden, ("embed", "mlp"), *init_1, name="fc1", dtype=self.dtype)
        fc2 = Dense(x.shape[-1], ("mlp", "embed"), *init_2, name="fc2", dtype=self.dtype)
        y = ACTIVATIONS[self.activation](fc1(x))  # [B, L, F]
        return fc2(dropout(y, self.dropout, rows))


def parameter(
    module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
) -> jax.Array:
    """Returns a parameter of `module` with logical axis names, in float32 or wider."""
    dtype = wide(getattr(module, "dtype", jnp.float32))
    value: Any = module.param(name, nn.with_logical_partitioning(init, axes), shape, dtype)
    return value


def constrain(x: jax.Array) -> jax.Array:
    """Constrains the sharding of [B, L, W] activations by their logical axis names."""
    return with_logical_constraint(x, ("batch", "length", "embed_act"))


def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the rows [..., W] of a word table [V, W]; an id out of range gives NaN."""
    # A sharded table is gathered before the look-up; otherwise XLA gathers the result instead.
    return jnp.take(with_logical_constraint(table, (None, None)), ids, axis=0)


def flat_matmul(x: jax.Array, kernel: jax.Array, dtype: Dtype, out_dtype: Dtype) -> jax.Array:
    """Computes x [..., I] @ kernel [I, O] -> [..., O].

    Operands are cast to `dtype`; accumulation and result are in `out_dtype`. The rows are joined to
    [B*L, I], which is faster on CPUs. On TPUs they keep their axes, because joined rows prevent the
    fusion with the following activation.
    """
    if traced_platform() == "tpu":
        return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=out_dtype)
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)  # [B*L, I]
    y = jnp.matmul(rows, kernel.astype(dtype), preferred_element_type=out_dtype)  # [B*L, O]
    return y.reshape(*x.shape[:-1], kernel.shape[-1])  # [..., O]


class _Dropout(nn.Module):
    """Inverted dropout with random bits per row, from a default JAX key (threefry)."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        key = self.make_rng("dropout")

        def keep(row: jax.Array) -> jax.Array:
            return jax.random.bernoulli(jax.random.fold_in(key, row), 1 - self.rate, x.shape[1:])

        return jnp.where(jax.vmap(keep)(rows), x / (1 - self.rate), 0).astype(x.dtype)


def dropout(x: jax.Array, rate: float, rows: jax.Array | None = None) -> jax.Array:
    """Applies inverted dropout to x [B, ...] in a Linen method; draws no bits if it does nothing.

    Args:
      rate: probability of 0; 0 outside training.
      rows: int32 [B], indices of the rows in the global batch; None for 0 to B - 1.
    """
    if rate == 0.0:
        return x
    return _Dropout(rate)(x, jnp.arange(x.shape[0], dtype=jnp.int32) if rows is None else rows)
