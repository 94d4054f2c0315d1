"""Towers that read regions of images: features [B, R, F] and boxes [B, R, 4].

Boxes are x1, y1, x2, y2, divided by the image's width and height.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.config import RegionGraph, RegionTransformer
from big_retrieval.models.batch_norm import BatchNorm
from big_retrieval.models.layers import BlockInit, Dense, Dtype, uniform, wide
from big_retrieval.models.recurrent import GruLayer
from big_retrieval.models.transformer import block_keys, run_layers
from big_retrieval.similarity import unit


class GraphLayer(nn.Module):
    """One layer of VSRN's graph: v + BN(W (R g(v))), where R = theta(v) phi(v)^T / count.

    The relation R [B, R, R] of two regions is a plain product, with no softmax. Scale and shift of
    the batch norm start from 0, and so the layer from the identity.

    Attributes:
      average: see `BatchNorm`.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    average: bool
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, v: jax.Array) -> jax.Array:
        """[B, R, W] -> [B, R, W] in `dtype`."""
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width, init = v.shape[-1], uniform(v.shape[-1] ** -0.5)

        def dense(name: str, x: jax.Array, axes: tuple[str, str]) -> jax.Array:
            return Dense(width, axes, init, init, name=name, **types)(x)

        theta, phi, g = (dense(name, v, ("embed", "heads")) for name in ("theta", "phi", "g"))
        relation = jnp.einsum("bnw,bmw->bnm", theta, phi) / v.shape[1]  # [B, R, R]
        y = dense("out", jnp.einsum("bnm,bmw->bnw", relation, g), ("heads", "embed"))
        y = BatchNorm(self.average, initializers.zeros, name="bn", **types)(y)
        return with_logical_constraint(y + v, ("batch", "length", "embed_act"))


class RegionGraphNetwork(nn.Module):
    """Regions -> one vector, see `config.RegionGraph`.

    Parameters: `fc`, `layers_i/{theta, phi, g, out, bn}`, `gru` (see `GruLayer`), `bn`. The
    collection `batch_stats` has the norms' `mean` and `var` at their paths.

    Attributes:
      spec: its configuration.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    spec: RegionGraph
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, features: jax.Array, boxes: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """Features [B, R, F] and boxes, which are not read -> [B, 1, W] in `dtype`.

        Args:
          features: [B, R, F]; the order of the regions counts, as the GRU reads them in it.
          boxes: [B, R, 4].
          train: whether to normalise by the batch and to move the running averages.
          rows: of no use here: nothing is random.
        """
        del boxes, rows
        spec, average = self.spec, self.spec.frozen_stats or not train
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        init = initializers.xavier_uniform()
        v = Dense(spec.width, ("embed", "embed_act"), init, name="fc", **types)(features)
        if spec.normalise_regions:
            v = unit(v, -1).astype(self.dtype)
        for i in range(spec.depth):
            v = GraphLayer(average, name=f"layers_{i}", **types)(v)
            self.sow("intermediates", "layer_outputs", v)
        _, last = GruLayer(spec.width, name="gru", **types)(unit(v, -1).astype(self.dtype))
        x = BatchNorm(average, name="bn", **types)(last[:, None])  # [B, 1, W]
        self.sow("intermediates", "final", x)
        return x


class RegionTransformerNetwork(nn.Module):
    """Regions and boxes -> all positions, see `config.RegionTransformer`.

    Parameters: `fc1`, `fc2`, of what a region is described by, and `layers_i` as in
    `transformer.run_layers`; all start as PyTorch's own layers do.

    Attributes:
      spec: its configuration.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    spec: RegionTransformer
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, features: jax.Array, boxes: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """Features [B, R, F] and boxes [B, R, 4] -> [B, R + 1, W] in `dtype`, the first for the
        whole image.

        Args:
          features: [B, R, F].
          boxes: [B, R, 4], x1, y1, x2, y2 from 0 to 1.
          train: whether dropout is on.
          rows: see `layers.dropout`.
        """
        spec, types = self.spec, {"dtype": self.dtype, "param_dtype": self.param_dtype}
        boxes = boxes.astype(wide(self.dtype))
        area = (boxes[..., 2:3] - boxes[..., :1]) * (boxes[..., 3:] - boxes[..., 1:2])
        x = jnp.concatenate([features, boxes, area], axis=-1, dtype=self.dtype)  # [B, R, F + 5]
        x = jnp.pad(x, [(0, 0), (1, 0), (0, 0)])  # the image's own position
        for name, axes in (("fc1", ("embed", "mlp")), ("fc2", ("mlp", "embed"))):
            init = uniform(x.shape[-1] ** -0.5)
            x = Dense(spec.width, axes, init, init, name=name, **types)(x)  # [B, R + 1, W]
            x = jax.nn.relu(x) if name == "fc1" else x
        block = block_keys(spec, BlockInit.vision(spec.width, spec.mlp), train, **types)
        x = run_layers(
            self, block, x, rows=rows, depth=spec.depth, scan=spec.scan, remat=spec.remat
        )
        self.sow("intermediates", "final", x)
        return x
