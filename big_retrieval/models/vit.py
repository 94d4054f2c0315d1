"""The vision tower: a pre-LN vision transformer with M class tokens, or pooled patches.

As in "Design of the Topology for Contrastive Visual-Textual Alignment", the first M tokens are
learned vectors with separate positions; their outputs become the M sub-spheres.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Activation, AttentionChoice, Remat
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
from big_retrieval.models.transformer import Transformer, run_layers, stored_rows
from big_retrieval.runtime.platform import traced_platform


@register("tower")
@dataclass(frozen=True)
class ViT(Transformer):
    """A pre-LN vision transformer with M class tokens."""

    modality: ClassVar[str] = "image"
    computed_by: ClassVar[tuple[str, ...]] = (
        "patch", "width", "depth", "heads", "mlp", "pool", "norm_first", "patch_bias", "epsilon",
        "activation",
    )  # fmt: skip
    least_tokens: ClassVar[int] = 0
    type: Literal["vit"] = "vit"
    patch: AtLeast1 = 16
    width: AtLeast1 = 768
    depth: AtLeast1 = 12
    heads: AtLeast1 = 12
    mlp: AtLeast1 = 3072
    class_tokens: AtLeast0 = 1
    tokens_as_one: bool = False  # class tokens together get the attention weight of one
    # the class tokens, one mean of the patches, or all patches (for lexical heads)
    pool: Literal["first", "mean", "none"] = "first"
    norm_first: bool = True  # a norm before the first layer, as in CLIP
    patch_bias: bool = False
    epsilon: Positive = 1e-5  # of all norms
    activation: Activation = "gelu"
    dropout: ShareBelow1 = 0.0
    embedding_std: float | None = None  # initial deviation of tables; None for 1 / sqrt(width)
    remat: Remat = "none"  # parts that the backward pass computes again
    # one compiled layer instead of `depth` (same values and parameter names); on GPUs only with
    # remat=block
    scan: bool = False
    # "kernel": fused attention (Pallas on TPU, cuDNN on GPU), an error if it cannot run; "plain":
    # XLA; "auto": the kernel if it can run. All have the same parameters
    attention: AttentionChoice = "auto"

    def check_field(self, field: Any, field_path: str, path: str) -> Iterator[str]:
        if field.size % self.patch:
            yield (
                f"{field_path}.size {field.size} must be a multiple of {path}.patch {self.patch}."
            )

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        return VisionTransformer(self, **module)

    def runlocal(self) -> "ViT":
        return dataclasses.replace(super().runlocal(), patch=8)  # type: ignore


VIT_SIZES = {  # patch, width, depth, heads, mlp
    "Ti/16": (16, 192, 12, 3, 768),
    "S/16": (16, 384, 12, 6, 1536),
    "B/32": (32, 768, 12, 12, 3072),
    "B/16": (16, 768, 12, 12, 3072),
    "L/14": (14, 1024, 24, 16, 4096),
}


class VisionTransformer(nn.Module):
    """Module of a `ViT`: images -> M class tokens.

    Parameters:
      `class_embedding [M, W]` (if M > 0).
      `position_embedding [M + patches, W]`: class tokens, then patches in row-major order.
      `patch_embedding/kernel [P*P*3, W]` (row, column, channel in a patch), `bias` (`patch_bias`).
      `ln_pre` (with `norm_first`), `layers_i/...`, `ln_post`.

    Intermediates (sown): "embedding" [B, M + patches, W] (after ln_pre), "layer_outputs", "final"
    [B, M, W] (after ln_post, the features of a linear probe).
    """

    spec: ViT
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, rows: jax.Array | None = None
    ) -> jax.Array:
        """[B, S, S, 3], normalized floats -> [B, M, W] in `dtype`; S must stay the same.

        M is 1 with `pool` "mean", the number of patches with "none". `train` turns dropout on;
        `rows`: see `layers.dropout`.
        """
        spec, m = self.spec, self.spec.class_tokens
        sizes = spec.width, spec.patch, spec.patch_bias
        embed = PatchEmbedding(*sizes, name="patch_embedding", dtype=self.dtype)
        x = embed(images.astype(self.dtype))  # [B, L-M, W]
        if m:
            tokens = self._table("class_embedding", m, "class_token")
            tokens = jnp.broadcast_to(tokens, (x.shape[0], m, spec.width))  # [B, M, W]
            x = jnp.concatenate([tokens, x], axis=1)  # [B, L, W]
        length = stored_rows(self, "position_embedding", x.shape[1])
        if length != x.shape[1]:
            raise UserError(
                f"Images {images.shape[1:3]} have {x.shape[1]} positions, but the vision tower was "
                f"built for {length}. Use its image size."
            )
        x = x + self._table("position_embedding", length, "position")
        x = dropout(x, spec.dropout if train else 0.0, rows)
        if spec.norm_first:
            x = LayerNorm(spec.epsilon, name="ln_pre", dtype=self.dtype)(x)
        self.sow("intermediates", "embedding", x)
        bias = None
        if spec.tokens_as_one and m > 1:
            index = jnp.arange(length)[None]  # [1, L]
            bias = weigh_as_one(jnp.where(index < m, index, -1), m)  # [1, 1, 1, L]
        inits = BlockInit.vision(spec.width, spec.mlp)
        x = run_layers(self, inits, x, rows=rows, bias=bias, train=train)
        ln_post = LayerNorm(spec.epsilon, name="ln_post", dtype=self.dtype)
        x = ln_post(x[:, :m] if spec.pool == "first" else x[:, m:])  # [B, M or patches, W]
        if spec.pool == "mean":
            x = jnp.mean(x, axis=1, keepdims=True)  # [B, 1, W]
        self.sow("intermediates", "final", x)
        return x

    def _table(self, name: str, rows: int, axis: str) -> jax.Array:
        std = self.spec.width**-0.5 if self.spec.embedding_std is None else self.spec.embedding_std
        init, shape = initializers.normal(std), (rows, self.spec.width)
        table = parameter(self, name, init, shape, (axis, "embed"))
        return table.astype(self.dtype)


class PatchEmbedding(nn.Module):
    """Product of patches and a kernel, with the parameters of a `Dense` layer."""

    width: int
    patch: int
    use_bias: bool = False
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, S, T, C] -> [B, (S / P) (T / P), width] in `dtype`, patches row-major."""
        size, axes = self.patch**2 * images.shape[-1], ("patch_in", "embed")
        kernel = parameter(self, "kernel", uniform(size**-0.5), (size, self.width), axes)
        # TPUs pad the patches of `patchify` 10 to 21 times.
        embed = convolve_patches if traced_platform() == "tpu" else multiply_patches
        x = embed(images.astype(self.dtype), kernel.astype(self.dtype), self.patch)
        if not self.use_bias:
            return x
        bias = parameter(self, "bias", initializers.zeros, (self.width,), axes[1:])
        return x + bias.astype(self.dtype)


def convolve_patches(images: jax.Array, kernel: jax.Array, patch: int) -> jax.Array:
    """Images [B, S, T, C], kernel [P*P*C, W] -> [B, patches, W], by a convolution of stride P."""
    kernel = kernel.reshape(patch, patch, images.shape[-1], -1)  # [P, P, C, W]
    x = jax.lax.conv_general_dilated(
        images, kernel, (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )  # [B, S/P, T/P, W]
    return x.reshape(x.shape[0], -1, x.shape[-1])


def multiply_patches(images: jax.Array, kernel: jax.Array, patch: int) -> jax.Array:
    """Computes the result of `convolve_patches` by one product of [B*patches, P*P*C] rows."""
    return flat_matmul(patchify(images, patch), kernel, images.dtype, images.dtype)


def patchify(images: jax.Array, patch: int) -> jax.Array:
    """[B, S, T, C] -> [B, patches, P*P*C]: patches row-major, inside row, column, channel."""
    batch, height, width, channels = images.shape
    grid = (height // patch, width // patch)
    x = images.reshape(batch, grid[0], patch, grid[1], patch, channels)  # [B, S/P, P, T/P, P, C]
    x = x.transpose(0, 1, 3, 2, 4, 5)  # [B, S/P, T/P, P, P, C]
    return x.reshape(batch, grid[0] * grid[1], patch * patch * channels)  # [B, L-M, P*P*C]
