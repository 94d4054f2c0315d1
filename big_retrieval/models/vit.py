"""The vision tower: a pre-LN vision transformer with M class tokens, or pooled patches.

As in "Design of the Topology for Contrastive Visual-Textual Alignment": the M tokens at the
front are learned vectors with positions of their own; their outputs become the M sub-spheres.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import ViT
from big_retrieval.errors import UserError
from big_retrieval.models.class_tokens import weigh_as_one
from big_retrieval.models.layers import (
    BlockInit,
    Dtype,
    LayerNorm,
    dropout,
    flat_matmul,
    parameter,
    uniform,
)
from big_retrieval.models.transformer import block_keys, run_layers, stored_rows
from big_retrieval.runtime.platform import traced_platform


class VisionTransformer(nn.Module):
    """Images -> M class tokens.

    Parameters: `class_embedding [M, W]` (none with M = 0), `position_embedding [M + patches, W]`
    (rows 0..M-1 are the class tokens', then the patches in row-major order),
    `patch_embedding/kernel [P*P*3, W]` (row, column, channel within a patch) and, with
    `patch_bias`, its `bias`, `ln_pre` (with `norm_first`), `layers_i/...`, `ln_post`.

    Intermediates (sown): "embedding" [B, M + patches, W] (behind ln_pre), "layer_outputs", "final"
    [B, M, W] (behind ln_post, the features of a linear probe).

    Attributes:
      spec: its configuration.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    spec: ViT
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, rows: jax.Array | None = None
    ) -> jax.Array:
        """[B, S, S, 3], normalised floats -> [B, M, W] in `dtype`.

        M is 1 with `pool` "mean", the number of patches with "none".

        Args:
          images: [B, S, S, 3].
          train: whether dropout is on.
          rows: see `layers.dropout`.

        Raises:
          UserError: the image is no multiple of the patch, or not of the size of the positions.
        """
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        m = self.spec.class_tokens
        x = PatchEmbedding(
            self.spec.width, self.spec.patch, self.spec.patch_bias, name="patch_embedding", **types
        )(images.astype(self.dtype))  # [B, L-M, W]
        if m:
            tokens = self._table("class_embedding", m, "class_token")
            tokens = jnp.broadcast_to(tokens, (x.shape[0], m, self.spec.width))  # [B, M, W]
            x = jnp.concatenate([tokens, x], axis=1)  # [B, L, W]
        length = stored_rows(self, "position_embedding", x.shape[1])
        if length != x.shape[1]:
            raise UserError(
                f"images {images.shape[1:3]} make {x.shape[1]} positions, but the vision tower was "
                f"built for {length}: give it the image size that it was built with."
            )
        x = x + self._table("position_embedding", length, "position")
        x = dropout(x, self.spec.dropout, not train, rows)
        if self.spec.norm_first:
            x = LayerNorm(self.spec.epsilon, name="ln_pre", **types)(x)
        self.sow("intermediates", "embedding", x)
        block = block_keys(
            self.spec, BlockInit.vision(self.spec.width, self.spec.mlp), train, **types
        )
        bias = None
        if self.spec.tokens_as_one and m > 1:
            place = jnp.arange(length)[None]  # [1, L]
            bias = weigh_as_one(jnp.where(place < m, place, -1), m)  # [1, 1, 1, L]
        x = run_layers(
            self,
            block,
            x,
            rows=rows,
            bias=bias,
            depth=self.spec.depth,
            scan=self.spec.scan,
            remat=self.spec.remat,
        )
        ln_post = LayerNorm(self.spec.epsilon, name="ln_post", **types)
        if self.spec.pool == "mean":
            x = jnp.mean(ln_post(x[:, m:]), axis=1, keepdims=True)  # [B, 1, W]
        elif self.spec.pool == "none":
            x = ln_post(x[:, m:])  # [B, patches, W]
        else:
            x = ln_post(x[:, :m])  # [B, M, W]
        self.sow("intermediates", "final", x)
        return x

    def _table(self, name: str, rows: int, axis: str) -> jax.Array:
        """A learned [rows, W] table from N(0, embedding_std^2), in `dtype`."""
        std = self.spec.width**-0.5 if self.spec.embedding_std is None else self.spec.embedding_std
        init, shape = initializers.normal(std), (rows, self.spec.width)
        table = parameter(self, name, init, shape, (axis, "embed"), self.param_dtype)
        return table.astype(self.dtype)


class PatchEmbedding(nn.Module):
    """Patches times a kernel, [B, S, T, C] -> [B, (S / P) (T / P), width].

    On TPUs one convolution, as the patches of `patchify` are padded 10 to 21 times there. Kernel
    [P*P*C, width] and bias are the parameters of a `Dense` layer.
    """

    width: int
    patch: int
    use_bias: bool = False
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, S, T, C] -> [B, (S / P) (T / P), width] in `dtype`, patches row-major.

        Raises:
          UserError: a side of the image is not a multiple of the patch.
        """
        size, axes = self.patch**2 * images.shape[-1], ("patch_in", "embed")
        init, types = uniform(size**-0.5), self.param_dtype
        kernel = parameter(self, "kernel", init, (size, self.width), axes, types)
        embed = convolve_patches if traced_platform() == "tpu" else multiply_patches
        x = embed(images.astype(self.dtype), kernel.astype(self.dtype), self.patch)
        if not self.use_bias:
            return x
        bias = parameter(self, "bias", initializers.zeros, (self.width,), axes[1:], types)
        return x + bias.astype(self.dtype)


def convolve_patches(images: jax.Array, kernel: jax.Array, patch: int) -> jax.Array:
    """Images [B, S, T, C], kernel [P*P*C, W] -> [B, patches, W], as a convolution of stride P."""
    _check_sides(images.shape, patch)
    kernel = kernel.reshape(patch, patch, images.shape[-1], -1)  # [P, P, C, W]
    x = jax.lax.conv_general_dilated(
        images, kernel, (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )  # [B, S/P, T/P, W]
    return x.reshape(x.shape[0], -1, x.shape[-1])


def multiply_patches(images: jax.Array, kernel: jax.Array, patch: int) -> jax.Array:
    """The result of `convolve_patches`, as one product of [B*patches, P*P*C] rows."""
    return flat_matmul(patchify(images, patch), kernel, images.dtype, images.dtype)


def patchify(images: jax.Array, patch: int) -> jax.Array:
    """[B, S, T, C] -> [B, (S / P) (T / P), P*P*C]: patches row-major, inside row, column, channel.

    Raises:
      UserError: a side of the image is no multiple of the patch.
    """
    _check_sides(images.shape, patch)
    batch, height, width, channels = images.shape
    grid = (height // patch, width // patch)
    x = images.reshape(batch, grid[0], patch, grid[1], patch, channels)  # [B, S/P, P, T/P, P, C]
    x = x.transpose(0, 1, 3, 2, 4, 5)  # [B, S/P, T/P, P, P, C]
    return x.reshape(batch, grid[0] * grid[1], patch * patch * channels)  # [B, L-M, P*P*C]


def _check_sides(shape: tuple[int, ...], patch: int) -> None:
    if shape[1] % patch or shape[2] % patch:
        raise UserError(
            f"image size {shape[1]} x {shape[2]} is not a multiple of the patch size {patch}: "
            "change the field's size or the tower's patch."
        )
