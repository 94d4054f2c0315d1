"""The convolutional tower: a residual network with batch norm, one vector an image.

"Deep Residual Learning for Image Recognition", in the form of torchvision (v1.5): the stride of a
bottleneck block is in its convolution of 3 x 3. All arrays are [B, height, width, channels].
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.config import ResNet
from big_retrieval.models.batch_norm import BatchNorm
from big_retrieval.models.layers import Dtype, parameter, wide

KERNEL = ("kernel_row", "kernel_column", "channel", "embed")
_he = initializers.variance_scaling(2.0, "fan_out", "normal")


class Convolution(nn.Module):
    """A convolution without bias, padded by half of its window; `kernel [size, size, I, O]`.

    Attributes:
      features: O.
      size: side of the window, odd.
      stride: step between two windows.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    features: int
    size: int
    stride: int = 1
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, h, w, I] -> [B, ceil(h / stride), ceil(w / stride), O] in `dtype`."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = parameter(self, "kernel", _he, shape, KERNEL, self.param_dtype)
        y = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            window_strides=(self.stride, self.stride),
            padding=[(self.size // 2, self.size // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return with_logical_constraint(y, ("batch", None, None, "embed_act"))


class ResidualBlock(nn.Module):
    """`conv1`, `bn1`, ... of `convolutions`, and a short cut, `downsample_{conv, bn}` if need be.

    Attributes:
      inner: channels of its convolutions of 3 x 3.
      stride: of the block.
      bottleneck: see `convolutions`.
      average: see `BatchNorm`.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    inner: int
    stride: int
    bottleneck: bool
    average: bool
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, h, w, I] -> [B, ceil(h / stride), ceil(w / stride), O] in `dtype`."""
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        y = x
        for k, (size, features, stride) in enumerate(
            convolutions(self.inner, self.stride, self.bottleneck), 1
        ):
            y = jax.nn.relu(y) if k > 1 else y
            y = Convolution(features, size, stride, name=f"conv{k}", **types)(y)
            y = BatchNorm(self.average, name=f"bn{k}", **types)(y)
        if x.shape != y.shape:
            x = Convolution(y.shape[-1], 1, self.stride, name="downsample_conv", **types)(x)
            x = BatchNorm(self.average, name="downsample_bn", **types)(x)
        return jax.nn.relu(x + y)


def convolutions(inner: int, stride: int, bottleneck: bool) -> tuple[tuple[int, int, int], ...]:
    """(side of the window, channels, stride) of a block's convolutions, in their order."""
    if bottleneck:
        return (1, inner, 1), (3, inner, stride), (1, 4 * inner, 1)
    return (3, inner, stride), (3, inner, 1)


class ResidualNetwork(nn.Module):
    """Images -> one vector.

    Parameters: `conv1`, `bn1`, then `layer{stage}_{block}`, stages from 1 and blocks from 0, see
    `ResidualBlock`. The collection `batch_stats` has the norms' `mean` and `var` at their paths.

    Intermediates (sown): "layer_outputs", a tuple of [B, h, w, C] of all blocks; "final" [B, 1, W].

    Attributes:
      spec: its configuration.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    spec: ResNet
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, rows: jax.Array | None = None
    ) -> jax.Array:
        """[B, S, S, 3], normalised floats -> [B, 1, W] in `dtype`.

        Args:
          images: [B, S, S, 3].
          train: whether to normalise by the batch and to move the running averages, which must be
            mutable then (unless they are frozen).
          rows: of no use here: nothing is random.
        """
        del rows
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        average = self.spec.frozen_stats or not train
        x = Convolution(self.spec.stem, 7, 2, name="conv1", **types)(images)  # [B, S/2, S/2, stem]
        x = jax.nn.relu(BatchNorm(average, name="bn1", **types)(x))
        halo: Any = ((1, 1), (1, 1))
        x = nn.max_pool(x, (3, 3), (2, 2), halo)  # [B, S/4, S/4, stem]
        block = nn.remat(ResidualBlock) if self.spec.remat == "block" else ResidualBlock
        for name, inner, stride in self._layout():
            x = block(inner, stride, self.spec.bottleneck, average, name=name, **types)(x)
            self.sow("intermediates", "layer_outputs", x)
        x = jnp.mean(x, (1, 2), dtype=wide(self.dtype))[:, None].astype(self.dtype)  # [B, 1, W]
        self.sow("intermediates", "final", x)
        return x

    def _layout(self) -> Iterator[tuple[str, int, int]]:
        """(name, inner channels, stride) of all blocks."""
        for stage, count in enumerate(self.spec.blocks):
            for i in range(count):
                stride = 2 if stage and not i else 1
                yield f"layer{stage + 1}_{i}", self.spec.stem * 2**stage, stride
