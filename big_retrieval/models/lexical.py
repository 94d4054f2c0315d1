"""The lexical head: a representation with one number for every term of a vocabulary.

The "disentangled" head of "Retrieval-based Disentangled Representation Learning with Natural
Language Supervision" (VDR, section 3.1 and Eq. 3), and the head of SPLADE with another activation:
layer norm, projection onto the vocabulary, pooling over positions, activation. SPLADE is made of a
masked-language model, whose head has a dense layer with an activation in front ("SPLADE v2: Sparse
Lexical and Expansion Model for Information Retrieval", section 3).
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.errors import UserError
from big_retrieval.models.layers import ACTIVATIONS as TRANSFORMS
from big_retrieval.models.layers import Dense, Dtype, LayerNorm, parameter
from big_retrieval.models.pooling import PoolingOptions, max_pool, mean_pool
from big_retrieval.similarity import unit

Pooling = Literal["max", "mean"]


def elu1p(x: jax.Array) -> jax.Array:
    """x + 1 from 0 on, e^x below (VDR, Eq. 3); positive, slope 1 at 0, without NaN gradients."""
    return jnp.where(x >= 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


def log1p_relu(x: jax.Array) -> jax.Array:
    """log(1 + max(x, 0)) (SPLADE), slope 0 at 0."""
    return jnp.log1p(jax.nn.relu(x))


def log1p_log1p_relu(x: jax.Array) -> jax.Array:
    """log(1 + log(1 + max(x, 0))), sparser ("Exploring l0 Sparsification for Inference-free
    Sparse Retrievers")."""
    return jnp.log1p(log1p_relu(x))


ACTIVATIONS = {
    "elu1p": elu1p,
    "log1p_relu": log1p_relu,
    "log1p_log1p_relu": log1p_log1p_relu,
    "relu": jax.nn.relu,
}


class LexicalHead(nn.Module):
    """Positions [B, L, D] -> vocabulary representation [B, V], never holding [B, L, V].

    Parameters: with `transform` `dense/kernel` [D, D] from N(0, 1 / D) and `dense/bias` [D];
    `ln/scale`, `ln/bias` [D]; unless tied `kernel` [V, D] from N(0, 1 / D); with
    `use_bias` `bias` [V], `bias_init` at the start.

    Attributes:
      terms: word-piece ids that make the V terms, in this order, such as range(999, 30522). A
        tied head takes these rows of the word table; consecutive ones cost no look-up.
      tied: project with the word table given at the call instead of an own kernel.
      activation: of `ACTIVATIONS`.
      pooling: "max", or "mean" of the activations.
      pooling_top_k: with "mean", only so many of the largest of each term; None: all.
      mask_padding: whether positions outside of the mask are left out. The authors' own code lets
        padding compete; False does as they do.
      transform: "none", or the activation ("gelu" (exact), "gelu_tanh", "quick_gelu", "relu") of a
        dense layer in front of the norm, as in BERT's masked-language head.
      layer_norm: False where the tower has normalised its output already.
      normalise: divide by the norm over the terms.
      epsilon: of the norm.
      use_bias: whether logits have a bias.
      bias_init: what it starts at; below 0, few terms are active at first.
      options: of the blocked loop.
      dtype: of the operands; logits are accumulated in float32 or wider.
      param_dtype: type of the parameters.
    """

    terms: Sequence[int]
    tied: bool = False
    activation: str = "elu1p"
    pooling: Pooling = "max"
    pooling_top_k: int | None = None
    mask_padding: bool = True
    transform: str = "none"
    layer_norm: bool = True
    epsilon: float = 1e-5
    use_bias: bool = False
    bias_init: float = 0.0
    normalise: bool = False
    options: PoolingOptions = PoolingOptions()
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: jax.Array, mask: jax.Array | None = None, table: jax.Array | None = None
    ) -> jax.Array:
        """Positions [B, L, D] -> [B, V], float32 or wider, not negative.

        Sows the intermediate "positions", uint8 or wider, [B, V]: where each maximum was found.

        Args:
          hidden: [B, L, D]; masked positions must be finite.
          mask: [B, L], true (or 1) at tokens; None: all. A row without any gives 0 everywhere.
          table: word table [R, D] of a tied head.

        Raises:
          UserError: the head is tied and there is no table or the other way round, the activation,
            the transform or the pooling is unknown, or what `max_pool` raises.
        """
        self._check(table)
        width, count = hidden.shape[-1], len(self.terms)
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        if self.transform != "none":
            init = initializers.normal(width**-0.5)
            dense = Dense(width, ("embed", "mlp"), init, name="dense", **types)
            hidden = TRANSFORMS[self.transform](dense(hidden))  # [B, L, D]
        if self.layer_norm:
            hidden = LayerNorm(self.epsilon, name="ln", **types)(hidden)  # [B, L, D]
        terms: Sequence[int] | None = self.terms
        if table is None:
            init, axes = initializers.normal(width**-0.5), ("vocab", "embed")
            table = parameter(self, "kernel", init, (count, width), axes, self.param_dtype)
            terms = None
        bias = None
        if self.use_bias:
            init, axes = initializers.constant(self.bias_init), ("vocab",)
            bias = parameter(self, "bias", init, (count,), axes, self.param_dtype)
        operands = (hidden, table, bias, mask if self.mask_padding else None)
        activation = ACTIVATIONS[self.activation]
        how: Any = {"columns": terms, "dtype": self.dtype, "options": self.options}
        if self.pooling == "mean":
            out = mean_pool(*operands, activation=activation, top_k=self.pooling_top_k, **how)
        else:
            pooled, positions = max_pool(*operands, **how)
            self.sow("intermediates", "positions", positions)
            out = activation(pooled)  # it is non-decreasing, so the order does not matter
        return unit(out, -1) if self.normalise else out  # [B, V]

    @nn.nowrap
    def _check(self, table: jax.Array | None) -> None:
        """Says which attributes do not fit."""
        if self.activation not in ACTIVATIONS:
            raise UserError(
                f"activation {self.activation!r} is unknown; known: {', '.join(ACTIVATIONS)}."
            )
        if self.transform not in ("none", *TRANSFORMS):
            known = ", ".join(("none", *TRANSFORMS))
            raise UserError(f"transform {self.transform!r} is unknown; known: {known}.")
        if self.pooling not in ("max", "mean"):
            raise UserError(f"pooling {self.pooling!r} is unknown; known: max, mean.")
        if self.tied and table is None:
            raise UserError("the lexical head is tied: give it the word table of its text tower.")
        if not self.tied and table is not None:
            raise UserError("the lexical head has its own kernel: set tied = True to use a table.")
