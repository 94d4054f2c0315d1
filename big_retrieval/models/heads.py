"""Heads: from class tokens to raw embeddings that a topology projects."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Projection
from big_retrieval.errors import UserError
from big_retrieval.models.layers import Dtype, flat_matmul, parameter, wide


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
