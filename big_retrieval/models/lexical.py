"""The lexical head: a representation with one number for every term of a vocabulary.

The "disentangled" head of "Retrieval-based Disentangled Representation Learning with Natural
Language Supervision" (VDR, section 3.1 and Eq. 3), and the head of SPLADE with another activation:
layer norm, projection onto the vocabulary, pooling over positions, activation. SPLADE is made of a
masked-language model, whose head has a dense layer with an activation in front ("SPLADE v2: Sparse
Lexical and Expansion Model for Information Retrieval", section 3).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Lexical
from big_retrieval.errors import UserError
from big_retrieval.models.layers import ACTIVATIONS as TRANSFORMS
from big_retrieval.models.layers import Dense, Dtype, LayerNorm, parameter
from big_retrieval.models.pooling import PoolingOptions, max_pool, mean_pool
from big_retrieval.similarity import unit


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
      spec: its configuration; `tied` heads project with the word table given at the call.
      terms: word-piece ids that make the V terms, in this order, such as range(999, 30522). A
        tied head takes these rows of the word table; consecutive ones cost no look-up.
      options: of the blocked loop.
      dtype: of the operands; logits are accumulated in float32 or wider.
      param_dtype: type of the parameters.
    """

    spec: Lexical
    terms: Sequence[int]
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
        if self.spec.transform != "none":
            init = initializers.normal(width**-0.5)
            dense = Dense(width, ("embed", "mlp"), init, name="dense", **types)
            hidden = TRANSFORMS[self.spec.transform](dense(hidden))  # [B, L, D]
        if self.spec.layer_norm:
            hidden = LayerNorm(self.spec.epsilon, name="ln", **types)(hidden)  # [B, L, D]
        terms: Sequence[int] | None = self.terms
        if table is None:
            init, axes = initializers.normal(width**-0.5), ("vocab", "embed")
            table = parameter(self, "kernel", init, (count, width), axes, self.param_dtype)
            # A kernel of its own has the rows of the terms alone, in their order.
            terms = None
        bias = None
        if self.spec.use_bias:
            init, axes = initializers.constant(self.spec.bias_init), ("vocab",)
            bias = parameter(self, "bias", init, (count,), axes, self.param_dtype)
        operands = (hidden, table, bias, None if self.spec.pool_padding else mask)
        activation = ACTIVATIONS[self.spec.activation]
        how: Any = {"columns": terms, "dtype": self.dtype, "options": self.options}
        if self.spec.pooling == "mean":
            out = mean_pool(*operands, activation=activation, top_k=self.spec.pooling_top_k, **how)
        else:
            pooled, positions = max_pool(*operands, **how)
            self.sow("intermediates", "positions", positions)
            out = activation(pooled)  # it is non-decreasing, so the order does not matter
        return unit(out, -1) if self.spec.normalise else out  # [B, V]

    @nn.nowrap
    def _check(self, table: jax.Array | None) -> None:
        """Says which attributes do not fit."""
        if self.spec.activation not in ACTIVATIONS:
            raise UserError(
                f"activation {self.spec.activation!r} is unknown; known: {', '.join(ACTIVATIONS)}."
            )
        if self.spec.transform not in ("none", *TRANSFORMS):
            known = ", ".join(("none", *TRANSFORMS))
            raise UserError(f"transform {self.spec.transform!r} is unknown; known: {known}.")
        if self.spec.pooling not in ("max", "mean"):
            raise UserError(f"pooling {self.spec.pooling!r} is unknown; known: max, mean.")
        if self.spec.tied and table is None:
            raise UserError("the lexical head is tied: give it the word table of its text tower.")
        if not self.spec.tied and table is not None:
            raise UserError("the lexical head has its own kernel: set tied = True to use a table.")
