"""The convolutional tower: a residual network with batch norm, one vector per image.

"Deep Residual Learning for Image Recognition", as in torchvision (v1.5): the stride of a bottleneck
block is in its 3 x 3 convolution. All arrays are [B, height, width, channels].
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Tower
from big_retrieval.models.batch_norm import BatchNorm, BatchNormed
from big_retrieval.models.layers import Dtype, parameter, wide

KERNEL = ("kernel_row", "kernel_column", "channel", "embed")
_he = initializers.variance_scaling(2.0, "fan_out", "normal")


class Convolution(nn.Module):
    """A convolution without bias, padded by half of its window; `kernel [size, size, I, O]`."""

    features: int  # O
    size: int  # side of the window, odd
    stride: int = 1
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, h, w, I] -> [B, ceil(h / stride), ceil(w / stride), O] in `dtype`."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = parameter(self, "kernel", _he, shape, KERNEL)
        y = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            window_strides=(self.stride, self.stride),
            padding=[(self.size // 2, self.size // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return with_logical_constraint(y, ("batch", None, None, "embed_act"))


class ResidualBlock(nn.Module):
    """`conv1`, `bn1`, ... of `convolutions`, and `downsample_{conv, bn}` if the shape changes."""

    inner: int  # channels of the 3 x 3 convolutions
    stride: int
    bottleneck: bool  # see `convolutions`
    average: bool  # see `BatchNorm`
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        for k, (size, features, stride) in enumerate(
            convolutions(self.inner, self.stride, self.bottleneck), 1
        ):
            y = jax.nn.relu(y) if k > 1 else y
            y = Convolution(features, size, stride, name=f"conv{k}", dtype=self.dtype)(y)
            y = BatchNorm(self.average, name=f"bn{k}", dtype=self.dtype)(y)
        if x.shape != y.shape:
            size, name = (y.shape[-1], 1, self.stride), "downsample_conv"
            x = Convolution(*size, name=name, dtype=self.dtype)(x)
            x = BatchNorm(self.average, name="downsample_bn", dtype=self.dtype)(x)
        return jax.nn.relu(x + y)


def convolutions(inner: int, stride: int, bottleneck: bool) -> tuple[tuple[int, int, int], ...]:
    """Returns (side of the window, channels, stride) of a block's convolutions, in order."""
    if bottleneck:
        return (1, inner, 1), (3, inner, stride), (1, 4 * inner, 1)
    return (3, inner, stride), (3, inner, 1)


@register("tower")
@dataclass(frozen=True)
class ResNet(BatchNormed, Tower):
    """A residual network (v1.5, as in torchvision) with batch norm: one vector per image."""

    modality: ClassVar[str] = "image"
    computed_by: ClassVar[tuple[str, ...]] = ("blocks", "bottleneck", "stem")
    type: Literal["resnet"] = "resnet"
    blocks: tuple[AtLeast1, ...] = (3, 4, 6, 3)  # number of blocks per stage
    bottleneck: bool = True  # blocks of three convolutions (1, 3, 1 pixels wide); False for two
    stem: AtLeast1 = 64  # channels of the first convolution; each later stage doubles them
    remat: Literal["none", "block"] = "none"  # parts that the backward pass computes again

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return sum(self.blocks)

    @property
    def width(self) -> int:  # of the last stage
        """Channels of the last stage: size of the vector."""
        return self.stem * 2 ** (len(self.blocks) - 1) * (4 if self.bottleneck else 1)

    def check(self, config: Config, path: str) -> Iterator[str]:
        if not self.blocks:
            yield f"{path}.blocks is (); it needs at least 1 stage."
        yield from super().check(config, path)

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        return ResidualNetwork(self, **module)

    def runlocal(self) -> "ResNet":
        return dataclasses.replace(self, stem=16, blocks=(1,) * len(self.blocks))


RESNET_SIZES = {  # blocks of each stage, bottleneck
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


class ResidualNetwork(nn.Module):
    """Module of a `ResNet`: images -> one vector.

    Parameters: `conv1`, `bn1`, then the blocks `layer{stage}_{block}`, stages from 1 and blocks
    from 0. The collection `batch_stats` has the norms' `mean` and `var` at their paths.

    Intermediates (sown): "layer_outputs", a tuple of [B, h, w, C] of all blocks; "final" [B, 1, W].
    """

    spec: ResNet
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, rows: jax.Array | None = None
    ) -> jax.Array:
        """[B, S, S, 3], normalized floats -> [B, 1, W] in `dtype`."""
        del rows  # nothing is random
        spec, average = self.spec, self.spec.frozen_stats or not train
        conv1 = Convolution(spec.stem, 7, 2, name="conv1", dtype=self.dtype)
        x = BatchNorm(average, name="bn1", dtype=self.dtype)(conv1(images))  # [B, S/2, S/2, stem]
        halo: Any = ((1, 1), (1, 1))
        x = nn.max_pool(jax.nn.relu(x), (3, 3), (2, 2), halo)  # [B, S/4, S/4, stem]
        block = nn.remat(ResidualBlock) if spec.remat == "block" else ResidualBlock
        for name, inner, stride in self._layout():
            x = block(inner, stride, spec.bottleneck, average, name=name, dtype=self.dtype)(x)
            self.sow("intermediates", "layer_outputs", x)
        x = jnp.mean(x, (1, 2), dtype=wide(self.dtype))[:, None].astype(self.dtype)  # [B, 1, W]
        self.sow("intermediates", "final", x)
        return x

    def _layout(self) -> Iterator[tuple[str, int, int]]:
        for stage, count in enumerate(self.spec.blocks):
            for i in range(count):
                stride = 2 if stage and not i else 1
                yield f"layer{stage + 1}_{i}", self.spec.stem * 2**stage, stride
