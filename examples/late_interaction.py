"""A topology of your own: late interaction over the embeddings of all tokens (MaxSim).

    big-retrieval train --config=examples/late_interaction.py:runlocal

Khattab and Zaharia, "ColBERT" (2020), and Yao et al., "FILIP" (2022), keep one embedding for every
token and patch. Each token of one side looks for its best partner on the other side, and the score
of a pair is the mean of what they find. Here both sides look, and the mean of the two is the score,
so that it does not matter which side is the query:

  s(a, b) = 1/2 [mean_i max_j a_i b_j + mean_j max_i a_i b_j]

A topology turns raw vectors into embeddings (`project`) and scores them (`score`, `paired`); the
losses, evaluators and searches of any model then use it. Here, an embedding is [L, N + 1]: L tokens
of N values, and in a last value 1 for a token and 0 for padding, so that the mask travels with what
it masks: through the exchange between devices, the tiles of the loss, and evaluation. `TokenHead`,
a head of your own, makes it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.similarity import unit

NOTHING = -1e30  # the score of a token with padding


@config.register("topology")
@dataclass(frozen=True)
class MaxSim(config.Topology):
    """`c.topology = "maxsim"`."""

    type: Literal["maxsim"] = "maxsim"

    def project(self, x: jax.Array) -> jax.Array:
        """Raw [..., L, N + 1] -> embeddings: tokens of length 1, padding all 0."""
        present = (x[..., -1:] > 0.5).astype(x.dtype)
        return jnp.concatenate([unit(x[..., :-1], -1) * present, present], axis=-1)

    def score(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Embeddings [R, L, N + 1], [C, L, N + 1] -> scores [R, C]; holds R x C x L x L numbers."""
        cosines = jnp.einsum("rin,cjn->rcij", a[..., :-1], b[..., :-1], precision="highest")
        return _mean_of_best(cosines, a[:, None, :, -1], b[None, :, :, -1])

    def paired(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Row i with row i, [R]."""
        cosines = jnp.einsum("rin,rjn->rij", a[..., :-1], b[..., :-1], precision="highest")
        return _mean_of_best(cosines, a[..., -1], b[..., -1])

    def numbers_per_score(self, shape: tuple[int, ...]) -> int:
        """By this the loss chooses the size of its tiles."""
        return shape[-2] ** 2


def _mean_of_best(cosines: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosines [..., I, J] and the masks [..., I] and [..., J] of both sides -> scores [...]."""
    of_a = jnp.max(jnp.where(b[..., None, :] > 0, cosines, NOTHING), axis=-1)
    of_b = jnp.max(jnp.where(a[..., :, None] > 0, cosines, NOTHING), axis=-2)
    found = [
        jnp.sum(jnp.where(mask > 0, best, 0), axis=-1) / jnp.maximum(jnp.sum(mask, axis=-1), 1)
        for best, mask in ((of_a, a), (of_b, b))
    ]
    # A row without any token (padding of the batch) has no partner: 0 instead of NOTHING.
    present = jnp.any(a > 0, axis=-1) & jnp.any(b > 0, axis=-1)
    return jnp.where(present, (found[0] + found[1]) / 2, 0)


@config.register("head")
@dataclass(frozen=True)
class TokenHead(config.Head):
    """The embeddings of all tokens or patches, cut or padded to one number of them."""

    type: Literal["tokens"] = "tokens"
    reads_positions = True  # all that a tower has, not its class tokens
    dim: int | None = 32  # of each token
    tokens: int = 20  # of a row; texts have fewer, the rest is padding

    def check(self, config: config.Config, field: str, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if self.dim is None or self.dim < 1 or self.tokens < 1:
            yield f"{path}.dim and {path}.tokens are {self.dim} and {self.tokens}; at least 1 each."
        if config.topology_type != "maxsim":
            yield f"{path}: embeddings of tokens need config.topology 'maxsim'."

    def embedding_shape(
        self, config: config.Config, field: str, vocab_size: int
    ) -> tuple[int, int]:
        """[L, N + 1] of the embeddings of a row."""
        return self.tokens, (self.dim or 0) + 1

    def build(self, terms: Any, **module: Any) -> "Tokens":
        """Its Linen module."""
        return Tokens(self.dim or 0, self.tokens, **module)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """Positions [B, P, W] of a tower -> raw [B, tokens, dim + 1]."""
        return module(tokens, arrays.get("mask"))


class Tokens(nn.Module):
    """One linear map for all positions, and the mask."""

    dim: int
    tokens: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, positions: jax.Array, mask: jax.Array | None) -> jax.Array:
        """[B, P, W] and bool [B, P], or None where all are there -> [B, tokens, dim + 1]."""
        present = jnp.ones(positions.shape[:2], bool) if mask is None else mask
        start = nn.initializers.normal(1 / math.sqrt(positions.shape[-1]))
        raw = nn.Dense(self.dim, use_bias=False, kernel_init=start, name="kernel")(positions)
        raw = jnp.concatenate([raw.astype(jnp.float32), present[..., None]], axis=-1)
        missing = max(0, self.tokens - raw.shape[1])
        return jnp.pad(raw[:, : self.tokens], [(0, 0), (0, missing), (0, 0)])


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.topology = "maxsim"
    c.towers.image.pool = c.towers.text.pool = "none"
    c.towers.image.class_tokens = 0
    for field in (c.fields.image, c.fields.text):
        field.head = recipe.entry(TokenHead())
    c.losses.main.logit_scale.init = 10.0
    c.evals.test.chunk = 32
    return recipe.runlocal(c) if args.runlocal else c
