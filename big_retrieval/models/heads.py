"""Dense heads: map a tower's vectors to raw embeddings, which a topology projects."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.config.heads import Head
from big_retrieval.config.ranges import AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Activation
from big_retrieval.models.batch_norm import BatchNorm, BatchNormed
from big_retrieval.models.class_tokens import mean_of_positions
from big_retrieval.models.layers import (
    ACTIVATIONS,
    BlockInit,
    Dense,
    Dtype,
    flat_matmul,
    parameter,
    uniform,
    wide,
)
from big_retrieval.models.transformer import Layers, run_layers
from big_retrieval.sparse.terms import Terms


@register("head")
@dataclass(frozen=True)
class Projection(Head):
    """One linear map from class tokens to embeddings, shared by all tokens, without bias.

    "Design of the Topology for Contrastive Visual-Textual Alignment": each of several class tokens
    becomes a sub-sphere of `dim` values, Multi(dim, M). With one token, `spheres` cuts its values
    into this number of contiguous blocks (section 4.3).
    """

    type: Literal["projection"] = "projection"
    dim: AtLeast1 | None = 512  # dimensions per class token; None for no projection
    spheres: int | None = None  # one class token only: its `dim` is cut into this many blocks
    # vectors to project: "tower": class tokens of the tower; "first" or "mean" of the positions, if
    # the tower gives all positions for a lexical head
    pool: Literal["tower", "first", "mean"] = "tower"

    @property
    def reads_positions(self) -> bool:  # type: ignore
        return self.pool != "tower"

    def check(self, config: Config, field: str, path: str) -> Iterator[str]:
        name = config.fields[field].tower
        tower, spheres = config.towers[name], self.spheres
        dim = self.dim or tower.width
        if spheres is None:
            return
        if tower.class_tokens > 1 and self.pool == "tower":
            yield (
                f"{path}.spheres is for towers with one class token; config.towers.{name} has "
                f"{tower.class_tokens}, each a sub-sphere already: set it to None."
            )
        elif spheres < 1 or dim % spheres:
            yield f"{path}.dim {dim} is not a multiple of {path}.spheres {spheres}."

    def embedding_shape(self, config: Config, field: str, vocab_size: int) -> tuple[int, int]:
        tokens, dim = super().embedding_shape(config, field, vocab_size)
        tokens = tokens if self.pool == "tower" else 1
        return (self.spheres, dim // self.spheres) if self.spheres else (tokens, dim)

    def build(self, terms: Terms | None, **module: Any) -> nn.Module:
        return ProjectionHead(self, **module)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> jax.Array:
        if self.pool == "first":
            tokens = tokens[:, :1]
        elif self.pool == "mean":
            tokens = mean_of_positions(tokens, arrays.get("mask"))
        return module(tokens)

    def runlocal(self) -> "Projection":
        if self.dim is None:  # the tower's own width
            return self
        if self.spheres:  # keep the blocks, shorten each
            return dataclasses.replace(self, dim=self.spheres * min(16, self.dim // self.spheres))
        return dataclasses.replace(self, dim=min(16 if self.dim < 512 else 64, self.dim))


class ProjectionHead(nn.Module):
    """Module of a `Projection`; parameter `kernel [W, dim]`, initially N(0, 1 / W)."""

    spec: Projection
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Class tokens [B, M, W] -> [B, M, dim] or [B, spheres, dim / spheres]."""
        width, spheres = tokens.shape[-1], self.spec.spheres
        embeddings = tokens.astype(wide(self.dtype))
        if self.spec.dim is not None:
            init, axes = initializers.normal(width**-0.5), ("embed", "projection")
            kernel = parameter(self, "kernel", init, (width, self.spec.dim), axes)
            embeddings = flat_matmul(tokens, kernel, self.dtype, wide(self.dtype))  # [B, M, dim]
        if spheres is None:
            return embeddings
        return embeddings.reshape(len(tokens), spheres, embeddings.shape[-1] // spheres)


@register("head")
@dataclass(frozen=True)
class Mlp(BatchNormed, Head):
    """Two linear maps per class token, without bias, with an activation between them.

    The projection head of LTD ("Reducing Predictive Feature Suppression in Resource-Constrained
    Contrastive Image-Caption Retrieval"), with `batch_norm` for its triplet loss. With "gelu" it is
    the projection of open_clip's Hugging Face text encoders.
    """

    type: Literal["mlp"] = "mlp"
    hidden: AtLeast1 | None = None  # values between the two maps; None for the tower's width
    dim: AtLeast1 = 1024  # dimensions per class token
    activation: Activation = "relu"
    batch_norm: bool = False

    @property
    def normed(self) -> bool:  # type: ignore
        return self.batch_norm

    def check(self, config: Config, field: str, path: str) -> Iterator[str]:  # type: ignore
        yield from super().check(config, path)

    def build(self, terms: Terms | None, **module: Any) -> nn.Module:
        return MlpHead(self, **module)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> jax.Array:
        return module(tokens, train=call["train"])

    def runlocal(self) -> "Mlp":
        hidden = None if self.hidden is None else min(64, self.hidden)
        return dataclasses.replace(self, hidden=hidden, dim=min(64, self.dim))


class MlpHead(nn.Module):
    """Module of an `Mlp`: `fc1`, activation, `fc2`, perhaps `bn`; kernels start Xavier-uniform."""

    spec: Mlp
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool = False) -> jax.Array:
        """Class tokens [B, M, W] -> raw embeddings [B, M, dim], in float32 or wider."""
        hidden, out = self.spec.hidden or tokens.shape[-1], wide(self.dtype)
        init = initializers.xavier_uniform()
        fc1 = Dense(hidden, ("embed", "mlp"), init, use_bias=False, name="fc1", dtype=self.dtype)
        axes = ("mlp", "projection")
        fc2 = Dense(
            self.spec.dim, axes, init, use_bias=False, out_dtype=out, name="fc2", dtype=self.dtype
        )
        x = fc2(ACTIVATIONS[self.spec.activation](fc1(tokens)))  # [B, M, dim]
        if not self.spec.batch_norm:
            return x
        average = self.spec.frozen_stats or not train
        return BatchNorm(average, name="bn", dtype=out)(x)


@register("head")
@dataclass(frozen=True)
class SharedTransformer(Layers, Head):
    """A projection per field, then transformer layers; the embedding is the first position.

    From TERN ("Transformer Encoder Reasoning Network"). Fields of any modality and width share it
    by `shares_head`. Their towers give all positions; attention leaves padding out.
    """

    reads_positions: ClassVar[bool] = True
    across: ClassVar[bool] = True
    norm = "post"
    inner_dropout = True
    type: Literal["shared_transformer"] = "shared_transformer"
    dim: AtLeast1 = 1024  # width of the projections, the layers and the embedding
    depth: AtLeast1 = 2
    heads: AtLeast1 = 4
    mlp: AtLeast1 = 2048
    activation: Activation = "relu"
    epsilon: Positive = 1e-5  # of the layer norms
    dropout: ShareBelow1 = 0.1

    def check(self, config: Config, field: str, path: str) -> Iterator[str]:
        if self.dim % self.heads:
            yield f"{path}.dim {self.dim} must be a multiple of {path}.heads {self.heads}."

    def embedding_shape(self, config: Config, field: str, vocab_size: int) -> tuple[int, int]:
        return 1, self.dim

    def build(self, terms: Terms | None, **module: Any) -> nn.Module:
        return SharedTransformerHead(self, **module)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> jax.Array:
        return module(tokens, arrays.get("mask"), **call)

    def runlocal(self) -> "SharedTransformer":
        small: Any = {"dim": min(64, self.dim), "depth": 2, "mlp": min(128, self.mlp)}
        return dataclasses.replace(self, dropout=0.0, **small)


class SharedTransformerHead(nn.Module):
    """Module of a `SharedTransformer`.

    Parameters: `<field>_projection` of every encoded field, and `layers_i` as in
    `transformer.run_layers`, with PyTorch's initial values.
    """

    spec: SharedTransformer
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None,
        *,
        field: str,
        train: bool = False,
        rows: jax.Array | None = None,
    ) -> jax.Array:
        """Positions [B, L, W] -> [B, 1, dim], float32 or wider; `mask` [B, L] excludes padding."""
        spec, init = self.spec, uniform(x.shape[-1] ** -0.5)
        name, axes = f"{field}_projection", ("embed", "embed_act")
        x = Dense(spec.dim, axes, init, init, name=name, dtype=self.dtype)(x)  # [B, L, dim]
        x = run_layers(self, BlockInit.vision(spec.dim, spec.mlp), x, mask, rows=rows, train=train)
        return x[:, :1].astype(wide(self.dtype))
