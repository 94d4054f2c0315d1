"""Heads: from a tower's vectors to raw embeddings that a topology projects."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Mlp, Projection, SharedTransformer
from big_retrieval.errors import UserError
from big_retrieval.models.batch_norm import BatchNorm
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
from big_retrieval.models.transformer import block_keys, run_layers


class ProjectionHead(nn.Module):
    """One linear map without bias, shared by all class tokens; parameter `kernel [W, dim]`.

    "Design of the Topology for Contrastive Visual-Textual Alignment": with several class tokens
    each becomes a sub-sphere of `dim` values, Multi(dim, M); with one token and `spheres` its
    values are cut into that many contiguous blocks (section 4.3). The kernel starts as N(0, 1 / W).

    Attributes:
      spec: its configuration.
      dtype: type of the operands; the product is accumulated in float32 or wider.
      param_dtype: type of the parameters.
    """

    spec: Projection
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Class tokens [B, M, W] -> raw embeddings [B, M, dim], or [B, spheres, dim / spheres].

        The result is in float32 or wider.

        Raises:
          UserError: `spheres` with several class tokens, or not a divisor of `dim`.
        """
        rows, count, width = tokens.shape
        spheres = self.spec.spheres
        if spheres is not None and count != 1:
            raise UserError(
                f"head.spheres is {spheres}, but the tower has {count} class tokens: cut a "
                "single token into spheres, or let every token be one (spheres = None)."
            )
        dim = width if self.spec.dim is None else self.spec.dim
        if spheres is not None and dim % spheres:
            raise UserError(f"head.dim {dim} is no multiple of head.spheres {spheres}.")
        embeddings = tokens.astype(wide(self.dtype))
        if self.spec.dim is not None:
            init, axes = initializers.normal(width**-0.5), ("embed", "projection")
            kernel = parameter(self, "kernel", init, (width, dim), axes, self.param_dtype)
            embeddings = flat_matmul(tokens, kernel, self.dtype, wide(self.dtype))  # [B, M, dim]
        if spheres is None:
            return embeddings
        return embeddings.reshape(rows, spheres, -1)  # [B, spheres, dim / spheres]


class MlpHead(nn.Module):
    """`fc1`, an activation, `fc2`, without biases, from Xavier's uniform values; perhaps `bn`.

    LTD's projection head ("Reducing Predictive Feature Suppression in Resource-Constrained
    Contrastive Image-Caption Retrieval").

    Attributes:
      spec: its configuration.
      dtype: type of the operands; the last product is accumulated in float32 or wider.
      param_dtype: type of the parameters.
    """

    spec: Mlp
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool = False) -> jax.Array:
        """Class tokens [B, M, W] -> raw embeddings [B, M, dim], in float32 or wider.

        Args:
          tokens: [B, M, W].
          train: whether the batch norm goes by the batch, and moves its running averages.
        """
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        hidden, init, out = self.spec.hidden or tokens.shape[-1], _XAVIER, wide(self.dtype)
        fc1 = Dense(hidden, ("embed", "mlp"), init, use_bias=False, name="fc1", **types)
        axes = ("mlp", "projection")
        fc2 = Dense(self.spec.dim, axes, init, use_bias=False, out_dtype=out, name="fc2", **types)
        x = fc2(ACTIVATIONS[self.spec.activation](fc1(tokens)))  # [B, M, dim]
        if not self.spec.batch_norm:
            return x
        average = self.spec.frozen_stats or not train
        return BatchNorm(average, name="bn", dtype=out, param_dtype=self.param_dtype)(x)


_XAVIER = initializers.xavier_uniform()


class SharedTransformerHead(nn.Module):
    """All positions of a field through a projection of its own, then layers that fields share.

    Parameters: `<field>_projection` of every field that has been seen, and `layers_i` as in
    `transformer.run_layers`; all start as PyTorch's own layers do.

    Attributes:
      spec: its configuration.
      dtype: type of the computation.
      param_dtype: type of the parameters.
    """

    spec: SharedTransformer
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

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
        """Positions [B, L, W] -> raw embeddings [B, 1, dim], in float32 or wider.

        Args:
          x: [B, L, W]; the first position becomes the embedding.
          mask: bool [B, L], true at what is no padding; None: all.
          field: whose positions they are.
          train: whether dropout is on.
          rows: see `layers.dropout`.
        """
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        spec, init = self.spec, uniform(x.shape[-1] ** -0.5)
        name, axes = f"{field}_projection", ("embed", "embed_act")
        x = Dense(spec.dim, axes, init, init, name=name, **types)(x)  # [B, L, dim]
        block = block_keys(spec, BlockInit.vision(spec.dim, spec.mlp), train, **types)
        x = run_layers(self, block, x, mask, rows=rows, depth=spec.depth)
        return x[:, :1].astype(wide(self.dtype))
