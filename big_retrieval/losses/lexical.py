"""Lexical representations of one side of a batch, and the contrastive mask of VDR."""

from typing import Literal

import flax.struct
import jax
import jax.numpy as jnp

from big_retrieval.sparse import gate
from big_retrieval.sparse.gate import SparseRows


@flax.struct.dataclass
class LexicalBatch:
    """Lexical representations of one side of a batch.

    Attributes:
      embeddings: dense V(x), [B, 1, V], or [B, K, 1, V] of hard negatives.
      bow: int32 [B, L] or [B, K, L], term ids of the row's words, -1 for no term; None for images.
    """

    embeddings: jax.Array
    bow: jax.Array | None = None

    @property
    def width(self) -> int:
        """V."""
        return self.embeddings.shape[-1]

    def gated(self, top_k: int | None, more: jax.Array | None = None) -> SparseRows:
        """Returns E(x), which also keeps the row's words and `more` terms, int32 [B, L'] or -1."""
        term_blocks = [terms for terms in (self.bow, more) if terms is not None]
        bow = jnp.concatenate(term_blocks, axis=1) if term_blocks else None
        return gate.sparsify(self.embeddings[:, 0], self.width if top_k is None else top_k, bow)

    def dense(self, rows: SparseRows) -> jax.Array:
        """Converts sparse rows to dense rows, [n, 1, V]."""
        return gate.to_dense(rows, self.width)[:, None]

    def bag(self, normalise: bool) -> SparseRows:
        """Returns bow(x)."""
        assert self.bow is not None
        return gate.bag_of_words(self.bow, normalise)

    def active(self, source: Literal["gate", "bag"], top_k: int | None) -> jax.Array:
        """Returns T(B), the terms that are active in at least one row, bool [V]."""
        rows = self.gated(top_k).terms if source == "gate" else self.bow
        assert rows is not None
        return jnp.any(gate.dense_mask(rows, self.width), axis=0)

    def flat(self) -> "LexicalBatch":
        """Returns hard negatives [B, K, ...] as rows [B K, ...]."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self)


def contrastive_mask(
    active: jax.Array, rows: int, first: int | jax.Array = 0, total: int = 0
) -> jax.Array:
    """Returns the inactive terms that each row gets, bool [rows, 1, V].

    Args:
      active: bool [V].
      first: index of the first row in the batch.
      total: B, rows of the batch; 0 for `rows`.
    """
    index = first + jnp.arange(rows)
    # Row v modulo B gets term v, so all rows get about the same number of terms.
    row_of_term = jnp.arange(len(active)) % (total or rows)
    return (row_of_term == index[:, None, None]) & ~active


def contrastive_mask_terms(active: jax.Array, rows: int) -> jax.Array:
    """Returns `contrastive_mask` as terms int32 [rows, K], -1 for no term."""
    width = len(active)
    terms = jnp.arange(rows)[:, None] + rows * jnp.arange(-(-width // rows))[None, :]
    free = (terms < width) & ~active[jnp.minimum(terms, width - 1)]
    return jnp.where(free, terms, -1).astype(jnp.int32)
