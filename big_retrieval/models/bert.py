"""The text tower: a bidirectional BERT-type transformer with M class tokens.

As in "Design of the Topology for Contrastive Visual-Textual Alignment": the M class tokens are
copies of the first id ([CLS]) that differ by their positions only.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.errors import UserError
from big_retrieval.models.layers import BlockInit, Dtype, LayerNorm, dropout, parameter
from big_retrieval.models.transformer import Norm, Remat, layers_flops, run_layers, stored_rows


class TextTransformer(nn.Module):
    """Token ids -> M class tokens.

    Parameters: `token_embedding [V, W]`, `position_embedding [L + M - 1, W]` (rows 0..M-1 are the
    class tokens'), `ln_embedding` (norm "post" only: pre-LN blocks normalise their own input),
    `layers_i/...`, `ln_final` (both norms: the published model has it behind post-LN layers).

    Intermediates (sown): "embedding" [B, L + M - 1, W] (behind ln_embedding where there is one),
    "layer_outputs", "final" [B, L + M - 1, W] (behind ln_final).

    Attributes:
      vocab_size: V.
      width: W; depth: layers; heads: H; mlp: inner width of the MLPs.
      class_tokens: M.
      norm: "post" (published model) or "pre".
      activation: "gelu" (exact), "gelu_tanh" or "relu".
      dropout: rate, after the embedding and in the blocks.
      embedding_std: of word and position tables at the start; None: CLIP's 0.02 and 0.01.
      max_length: ids of the longest text, for the position table; None: those of the first call.
      remat: see `run_layers`.
      scan: see `run_layers`.
      dtype: type of the computation and of the result.
      param_dtype: type of the parameters.
    """

    vocab_size: int
    width: int
    depth: int
    heads: int
    mlp: int
    class_tokens: int = 1
    norm: Norm = "post"
    activation: str = "gelu"
    dropout: float = 0.0
    embedding_std: float | None = None
    max_length: int | None = None
    remat: Remat = "none"
    scan: bool = False
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        ids: jax.Array,
        mask: jax.Array,
        *,
        train: bool = False,
        rows: jax.Array | None = None,
    ) -> jax.Array:
        """Token ids [B, L] and mask [B, L] (true or 1 at tokens) -> [B, M, W] in `dtype`.

        L may be below, never above, `max_length` (or the length of the initialisation). Masked
        positions are never looked at: more padding changes nothing. `rows`: see `layers.dropout`.

        Raises:
          UserError: the text is longer than the tower's positions.
        """
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        ids, mask = tile_first(ids, self.class_tokens), tile_first(mask, self.class_tokens)
        x = self._embed(ids)  # [B, L+M-1, W]
        if self.norm == "post":
            x = LayerNorm(name="ln_embedding", **types)(x)
        x = dropout(x, self.dropout, not train, rows)
        self.sow("intermediates", "embedding", x)
        block = {
            "heads": self.heads,
            "hidden": self.mlp,
            "inits": BlockInit.text(self.width, self.depth),
            "norm": self.norm,
            "activation": self.activation,
            "dropout": self.dropout,
            "deterministic": not train,
            **types,
        }
        x = run_layers(
            self, block, x, mask, rows=rows, depth=self.depth, scan=self.scan, remat=self.remat
        )
        x = LayerNorm(name="ln_final", **types)(x)
        self.sow("intermediates", "final", x)
        return x[:, : self.class_tokens]  # [B, M, W]

    def _embed(self, ids: jax.Array) -> jax.Array:
        """Ids [B, L+M-1] -> word plus position, [B, L+M-1, W] in `dtype`."""
        length = ids.shape[1]
        rows = length if self.max_length is None else self.max_length + self.class_tokens - 1
        rows = stored_rows(self, "position_embedding", rows)
        if length > rows:
            spare = rows - self.class_tokens + 1
            raise UserError(
                f"texts have {length - self.class_tokens + 1} tokens, but the text tower was built "
                f"for at most {spare}: shorten the field's length."
            )
        std = self.embedding_std
        stds = (0.02, 0.01) if std is None else (std, std)  # None: CLIP's
        words = self._table("token_embedding", self.vocab_size, "vocab", std=stds[0])
        positions = self._table("position_embedding", rows, "position", std=stds[1])
        # An id outside the vocabulary gives NaN here, which the training loop notices.
        # The table is gathered whole for the look-up; otherwise XLA gathers its result instead.
        words = with_logical_constraint(words, (None, None))
        x = jnp.take(words, ids, axis=0)  # [B, L+M-1, W]
        x = with_logical_constraint(x, ("batch", "length", "embed_act"))
        return (x + positions[:length]).astype(self.dtype)

    def _table(self, name: str, rows: int, axis: str, std: float) -> jax.Array:
        """A learned [rows, W] table from N(0, std^2), in `param_dtype`."""
        init, shape = initializers.normal(std), (rows, self.width)
        return parameter(self, name, init, shape, (axis, "embed"), self.param_dtype)

    @nn.nowrap
    def flops(self, length: int) -> int:
        """Operations of the matrix products, forward, for a text of `length` ids before tiling."""
        length = length + self.class_tokens - 1
        return layers_flops(length, self.width, self.depth, self.mlp)


def tile_first(x: jax.Array, times: int) -> jax.Array:
    """[B, L] -> [B, L + times - 1]: the first column `times` times, then the rest."""
    return jnp.concatenate([jnp.repeat(x[:, :1], times, axis=1), x[:, 1:]], axis=1)
