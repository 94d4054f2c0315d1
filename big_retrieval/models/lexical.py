"""The lexical head: a representation with one value for every term of a vocabulary.

Layer norm, projection onto the vocabulary, pooling over positions, activation. This is the head of
"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR,
section 3.1 and Eq. 3) and, with another activation, of "SPLADE v2: Sparse Lexical and Expansion
Model for Information Retrieval" (section 3), whose masked-language model has a dense layer with an
activation before it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.config.heads import LOCAL_TOP_K, Head
from big_retrieval.config.ranges import AtLeast0, Positive
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Activation
from big_retrieval.models.layers import ACTIVATIONS as TRANSFORMS
from big_retrieval.models.layers import Dense, Dtype, LayerNorm, parameter
from big_retrieval.models.pooling import Backward, max_pool, mean_pool
from big_retrieval.similarity import unit
from big_retrieval.sparse.terms import Terms, check_rule, terms_of_size


def elu1p(x: jax.Array) -> jax.Array:
    """Computes x + 1 for x >= 0, else e^x (VDR, Eq. 3); slope 1 at 0, without NaN gradients."""
    return jnp.where(x >= 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


def log1p_relu(x: jax.Array) -> jax.Array:
    """Computes log(1 + max(x, 0)) (SPLADE), slope 0 at 0."""
    return jnp.log1p(jax.nn.relu(x))


def log1p_log1p_relu(x: jax.Array) -> jax.Array:
    """Computes log(1 + log(1 + max(x, 0))), which is sparser.

    "Exploring l0 Sparsification for Inference-free Sparse Retrievers".
    """
    return jnp.log1p(log1p_relu(x))


ACTIVATIONS = {
    "elu1p": elu1p,
    "log1p_relu": log1p_relu,
    "log1p_log1p_relu": log1p_log1p_relu,
    "relu": jax.nn.relu,
}


@register("head")
@dataclass(frozen=True)
class Lexical(Head):
    """One value per word piece, pooled over the positions of a text or image (SPLADE, VDR)."""

    lexical: ClassVar[bool] = True
    reads_positions: ClassVar[bool] = True
    type: Literal["lexical"] = "lexical"
    tied: bool = True  # terms are the rows of the tower's word table; False for a separate kernel
    # activation of a dense layer before the terms, as in BERT's masked-language head
    transform: Literal["none", Activation] = "none"
    layer_norm: bool = True  # layer norm before the terms; False if the tower ends with one
    epsilon: Positive = 1e-5  # of the layer norm
    use_bias: bool = False  # add a bias to every term
    bias_init: float = 0.0  # initial bias; below 0, few terms are active at first
    activation: Literal["elu1p", "log1p_relu", "log1p_log1p_relu", "relu"] = "log1p_relu"
    pooling: Literal["max", "mean"] = "max"  # pooling over the positions
    pooling_top_k: int | None = None  # number of largest values in the mean; None for all
    pool_padding: bool = False  # also pool padding, as in the VDR authors' code
    # word pieces that are terms: "all", "words" (no special or unused ones), "ascii" (words in
    # ASCII), or all ids from a value on, such as "1000-"
    terms: str = "all"
    normalise: bool = False  # scale representations to norm 1
    # the gate of evaluations, indexes and searches (VDR, Eq. 4): it keeps the `top_k` largest terms
    # (None for all above 0), and with `keep_input_terms` also the terms of the text itself
    top_k: AtLeast0 | None = None
    keep_input_terms: bool = True

    def check(self, config: Config, field: str, path: str) -> Iterator[str]:
        spec = config.fields[field]
        only_lexical = all(other.head.lexical for other in config.encoded.values())
        if only_lexical and config.topology != "inner":
            yield (
                f"{path}.type 'lexical' is scored by inner products: set config.topology to "
                f"'inner' instead of {config.topology!r}."
            )
        if self.tied and not config.towers[spec.tower].word_table:
            yield f"{path}.tied: {spec.modality or spec.type}s have no word table; set it to False."
        if self.bias_init and not self.use_bias:
            yield (
                f"{path}.bias_init is {self.bias_init}, but there is no bias: set use_bias to True."
            )
        if self.pooling_top_k is not None and (self.pooling != "mean" or self.pooling_top_k < 1):
            yield (
                f"{path}.pooling_top_k is {self.pooling_top_k}; it is for pooling 'mean' and "
                "at least 1, or None."
            )
        if self.top_k == 0 and not (self.keep_input_terms and spec.modality == "text"):
            hint = f", or {path}.keep_input_terms to True" if spec.modality == "text" else ""
            yield f"{path}.top_k is 0, which leaves no term: set it to 1 or more{hint}."
        if reason := check_rule(self.terms):
            yield f"{path}.terms is {reason}."

    def embedding_shape(self, config: Config, field: str, vocab_size: int) -> tuple[int, int]:
        # Images have the terms of the texts that they are compared with.
        towers = (config.towers[config.fields[field].tower], *config.towers.values())
        rows = next(filter(None, (tower.vocab_size for tower in towers)), vocab_size)
        return 1, len(terms_of_size(self.terms, rows)) if rows else 0  # 0 if V is unknown

    def build(self, terms: Terms | None, **module: Any) -> nn.Module:
        assert terms is not None
        return LexicalHead(self, terms.ids, **module)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> jax.Array:
        table = tower.word_table() if self.tied else None
        return module(tokens, arrays.get("mask"), table)[:, None]

    def runlocal(self) -> "Lexical":
        top_k = None if self.top_k is None else min(self.top_k, LOCAL_TOP_K)
        return dataclasses.replace(self, top_k=top_k)


class LexicalHead(nn.Module):
    """Positions [B, L, D] -> vocabulary representation [B, V], without an array [B, L, V].

    Parameters:
      `dense/kernel` [D, D] from N(0, 1 / D), `dense/bias` [D] (with `transform`).
      `ln/scale`, `ln/bias` [D] (with `layer_norm`).
      `kernel` [V, D] from N(0, 1 / D) (unless tied).
      `bias` [V] from `bias_init` (with `use_bias`).
    """

    spec: Lexical
    # word-piece ids of the V terms. A tied head reads these rows of the word table, without look-up
    # if they are consecutive
    terms: Sequence[int]
    block: int | None = None  # `block` and `backward`: see `max_pool`
    backward: Backward = "auto"
    dtype: Dtype = jnp.float32  # of the operands; logits are accumulated in float32 or wider

    @nn.compact
    def __call__(
        self, hidden: jax.Array, mask: jax.Array | None = None, table: jax.Array | None = None
    ) -> jax.Array:
        """Positions [B, L, D] -> [B, V], float32 or wider, not negative.

        Sows the intermediate "positions" [B, V] of the maxima, uint8 or wider.

        Args:
          hidden: [B, L, D]; masked positions must be finite.
          mask: [B, L], true (or 1) at tokens; None for all. A row without tokens gives 0.
          table: word table [R, D] of a tied head.
        """
        spec = self.spec
        width, count = hidden.shape[-1], len(self.terms)
        if spec.transform != "none":
            init = initializers.normal(width**-0.5)
            dense = Dense(width, ("embed", "mlp"), init, name="dense", dtype=self.dtype)
            hidden = TRANSFORMS[spec.transform](dense(hidden))  # [B, L, D]
        if spec.layer_norm:
            hidden = LayerNorm(spec.epsilon, name="ln", dtype=self.dtype)(hidden)  # [B, L, D]
        terms: Sequence[int] | None = self.terms
        if table is None:
            init, axes = initializers.normal(width**-0.5), ("vocab", "embed")
            table = parameter(self, "kernel", init, (count, width), axes)
            terms = None  # this kernel has the rows of the terms only, in their order
        bias = None
        if spec.use_bias:
            init = initializers.constant(spec.bias_init)
            bias = parameter(self, "bias", init, (count,), ("vocab",))
        operands = (hidden, table, bias, None if spec.pool_padding else mask)
        activation = ACTIVATIONS[spec.activation]
        options: Any = {"columns": terms, "dtype": self.dtype, "block": self.block}
        if spec.pooling == "mean":
            out = mean_pool(*operands, activation=activation, top_k=spec.pooling_top_k, **options)
        else:
            pooled, positions = max_pool(*operands, backward=self.backward, **options)
            self.sow("intermediates", "positions", positions)
            out = activation(pooled)  # it is non-decreasing, so the order does not matter
        return unit(out, -1) if spec.normalise else out  # [B, V]
