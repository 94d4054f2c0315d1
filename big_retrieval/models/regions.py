"""Towers that read regions of images: features [B, R, F] and boxes [B, R, 4].

Boxes are x1, y1, x2, y2, divided by the image's width and height: values from 0 to 1.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config.ranges import AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Activation, Remat, Tower
from big_retrieval.models.batch_norm import BatchNorm, BatchNormed
from big_retrieval.models.layers import BlockInit, Dense, Dtype, constrain, uniform, wide
from big_retrieval.models.recurrent import GruLayer
from big_retrieval.models.transformer import Transformer, run_layers
from big_retrieval.similarity import unit


class GraphLayer(nn.Module):
    """One layer of VSRN's graph: v + BN(W (R g(v))), where R = theta(v) phi(v)^T / count.

    The relation R [B, R, R] is a product without softmax. Scale and shift of the batch norm start
    at 0, so the layer starts as the identity.
    """

    average: bool  # see `BatchNorm`
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, v: jax.Array) -> jax.Array:
        width, init = v.shape[-1], uniform(v.shape[-1] ** -0.5)

        def dense(name: str, x: jax.Array, axes: tuple[str, str]) -> jax.Array:
            return Dense(width, axes, init, init, name=name, dtype=self.dtype)(x)

        theta, phi, g = (dense(name, v, ("embed", "heads")) for name in ("theta", "phi", "g"))
        relation = jnp.einsum("bnw,bmw->bnm", theta, phi) / v.shape[1]  # [B, R, R]
        y = dense("out", jnp.einsum("bnm,bmw->bnw", relation, g), ("heads", "embed"))
        y = BatchNorm(self.average, initializers.zeros, name="bn", dtype=self.dtype)(y)
        return constrain(y + v)


@register("tower")
@dataclass(frozen=True)
class RegionGraph(BatchNormed, Tower):
    """The image encoder of VSRN ("Visual Semantic Reasoning for Image-Text Matching").

    Regions exchange information along a graph of all pairs, layer by layer; a GRU then reads them
    in their order. One vector per image.
    """

    modality: ClassVar[str] = "regions"
    computed_by: ClassVar[tuple[str, ...]] = ("width", "depth", "normalise_regions")
    type: Literal["region_graph"] = "region_graph"
    width: AtLeast1 = 1024
    depth: AtLeast1 = 4  # graph layers
    # scale projected regions to length 1 before the graph; VSRN's code does not for Flickr30k
    normalise_regions: bool = True

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        return RegionGraphNetwork(self, **module)

    def at_depth(self, depth: int) -> "RegionGraph":
        return dataclasses.replace(self, depth=depth)

    def runlocal(self) -> "RegionGraph":
        return dataclasses.replace(self, width=min(64, self.width), depth=min(2, self.depth))


class RegionGraphNetwork(nn.Module):
    """Module of a `RegionGraph`: regions -> one vector.

    Parameters: `fc`, `layers_i/{theta, phi, g, out, bn}`, `gru` (see `GruLayer`), `bn`. The
    collection `batch_stats` has the norms' `mean` and `var` at their paths.
    """

    spec: RegionGraph
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, features: jax.Array, boxes: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """Features [B, R, F], in the order of the GRU, and unused boxes -> [B, 1, W] in `dtype`."""
        del boxes, rows  # nothing is random
        spec, average = self.spec, self.spec.frozen_stats or not train
        init = initializers.xavier_uniform()
        v = Dense(spec.width, ("embed", "embed_act"), init, name="fc", dtype=self.dtype)(features)
        if spec.normalise_regions:
            v = unit(v, -1).astype(self.dtype)
        for i in range(spec.depth):
            v = GraphLayer(average, name=f"layers_{i}", dtype=self.dtype)(v)
            self.sow("intermediates", "layer_outputs", v)
        _, last = GruLayer(spec.width, name="gru", dtype=self.dtype)(unit(v, -1).astype(self.dtype))
        x = BatchNorm(average, name="bn", dtype=self.dtype)(last[:, None])  # [B, 1, W]
        self.sow("intermediates", "final", x)
        return x


@register("tower")
@dataclass(frozen=True)
class RegionTransformer(Transformer):
    """The image encoder of TERN: a transformer over regions with their boxes; gives all positions.

    The first position, before the regions, has input zeros; a head reads its output.
    """

    modality: ClassVar[str] = "regions"
    computed_by: ClassVar[tuple[str, ...]] = (
        "width", "depth", "heads", "mlp", "epsilon", "activation",
    )  # fmt: skip
    class_tokens = 1
    pool = "none"
    norm = "post"
    inner_dropout = True
    type: Literal["region_transformer"] = "region_transformer"
    width: AtLeast1 = 2048
    depth: AtLeast1 = 4
    heads: AtLeast1 = 4
    mlp: AtLeast1 = 2048
    activation: Activation = "relu"
    epsilon: Positive = 1e-5  # of all norms
    dropout: ShareBelow1 = 0.1
    remat: Remat = "none"  # parts that the backward pass computes again
    scan: bool = False  # one compiled layer instead of `depth`; see `ViT`

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        if not head.reads_positions:
            yield (
                f"{head_path}.type is {head.type!r}, which reads one vector, but {path} gives all "
                "positions: take a 'shared_transformer', or a projection with pool 'first'."
            )

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        return RegionTransformerNetwork(self, **module)


class RegionTransformerNetwork(nn.Module):
    """Module of a `RegionTransformer`: regions and boxes -> all positions.

    Parameters: `fc1` and `fc2` of a region's features, box and area, and `layers_i` as in
    `transformer.run_layers`, with PyTorch's initial values.
    """

    spec: RegionTransformer
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, features: jax.Array, boxes: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """Features [B, R, F], boxes [B, R, 4] -> [B, R + 1, W] in `dtype`; 0 is the full image."""
        spec = self.spec
        boxes = boxes.astype(wide(self.dtype))
        area = (boxes[..., 2:3] - boxes[..., :1]) * (boxes[..., 3:] - boxes[..., 1:2])
        x = jnp.concatenate([features, boxes, area], axis=-1, dtype=self.dtype)  # [B, R, F + 5]
        x = jnp.pad(x, [(0, 0), (1, 0), (0, 0)])  # the position of the full image
        for name, axes in (("fc1", ("embed", "mlp")), ("fc2", ("mlp", "embed"))):
            init = uniform(x.shape[-1] ** -0.5)
            x = Dense(spec.width, axes, init, init, name=name, dtype=self.dtype)(x)  # [B, R + 1, W]
            x = jax.nn.relu(x) if name == "fc1" else x
        x = run_layers(self, BlockInit.vision(spec.width, spec.mlp), x, rows=rows, train=train)
        self.sow("intermediates", "final", x)
        return x
