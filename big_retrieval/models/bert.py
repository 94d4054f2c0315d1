"""The text tower: a transformer of the BERT or the CLIP type, with M class tokens.

As in "Design of the Topology for Contrastive Visual-Textual Alignment", the M class tokens are
copies of the first id ([CLS]) that differ only by their positions. A causal model copies the last
id instead, because only the last position has seen the text.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Activation, AttentionChoice, Remat
from big_retrieval.errors import UserError
from big_retrieval.models.class_tokens import Tiled, pooled, tile_first, tile_last, weigh_as_one
from big_retrieval.models.layers import (
    BlockInit,
    Dtype,
    LayerNorm,
    constrain,
    dropout,
    look_up,
    parameter,
)
from big_retrieval.models.transformer import Transformer, run_layers, stored_rows


@register("tower")
@dataclass(frozen=True)
class Bert(Transformer):
    """A text transformer with M class tokens, like BERT; like CLIP with pre, causal and last."""

    modality: ClassVar[str] = "text"
    word_table: ClassVar[str] = "token_embedding"
    computed_by: ClassVar[tuple[str, ...]] = (
        "width", "depth", "heads", "mlp", "norm", "final_norm", "causal", "token_types",
        "relative_positions", "epsilon", "activation",
    )  # fmt: skip
    type: Literal["bert"] = "bert"
    width: AtLeast1 = 512
    depth: AtLeast1 = 12
    heads: AtLeast1 = 8
    mlp: AtLeast1 = 2048
    class_tokens: AtLeast0 = 1
    tokens_as_one: bool = False  # class tokens together get the attention weight of one
    # copies of the first or last token, the mean of the text, or all positions (for lexical heads)
    pool: Literal["first", "last", "mean", "none"] = "first"
    norm: Literal["post", "pre"] = "post"
    final_norm: bool = True  # a norm after the last layer; BERT has none
    causal: bool = False
    token_types: int = 0  # rows of BERT's table of segments; 0 for no table
    relative_positions: int = 0  # buckets of the bias by distance; 0 for no bias
    epsilon: Positive = 1e-5
    activation: Activation = "gelu"
    dropout: ShareBelow1 = 0.0
    embedding_std: float | None = None  # initial deviation of tables; None for CLIP's values
    remat: Remat = "none"
    scan: bool = False
    # "kernel": fused attention (Pallas on TPU, cuDNN on GPU), an error if it cannot run; "plain":
    # XLA; "auto": the kernel if it can run. All have the same parameters
    attention: AttentionChoice = "auto"
    vocab_size: int | None = None  # rows of the word table; None for the tokenizer's ids

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if self.attention == "kernel" and self.relative_positions:
            yield (
                f"{path}.attention 'kernel' has no biases by distance: set {path}.attention to "
                f"'auto' ({path}.relative_positions is {self.relative_positions})."
            )
        if self.causal and self.pool == "first":
            yield (
                f"{path}.causal: the first token sees nothing of the text; set {path}.pool to "
                "'last' or 'mean'."
            )

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        longest = max((field.length for field in fields), default=None)
        return TextTransformer(self, self.vocab_size or vocab_size, longest, **module)

    def runlocal(self) -> "Bert":
        return dataclasses.replace(super().runlocal(), vocab_size=None)  # type: ignore


class TextTransformer(nn.Module):
    """Module of a `Bert`: token ids -> M class tokens.

    Parameters:
      `token_embedding [V, W]`.
      `position_embedding [L + M - 1, W]`: rows 0..M-1 are for the class tokens; [L, W] with `pool`
        "last".
      `end_embedding [M, W]`: added to the copies of the last token (`pool` "last", M > 1).
      `token_type_embedding [T, W]` (with `token_types`): the first row is added to all positions.
      `ln_embedding` (norm "post"), `layers_i/...`, `ln_final` (with `final_norm`).
      `relative_bias [R, H]` (with `relative_positions`): shared by all layers.

    Intermediates (sown): "embedding" [B, L + M - 1, W] (after ln_embedding, if any),
    "layer_outputs", "final" [B, L + M - 1, W] (after ln_final, if any).
    """

    spec: Bert
    vocab_size: int
    # tokens of the longest text, for the position table; None for the length of the first call
    max_length: int | None = None
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, ids: jax.Array, mask: jax.Array, *, train: bool = False, rows: jax.Array | None = None
    ) -> jax.Array:
        """Token ids [B, L] and mask [B, L] (true or 1 at tokens) -> [B, M, W] in `dtype`.

        M is 1 with `pool` "mean" and L with "none". Only the first tokens of a row may be true in
        the mask. More padding does not change the result; more tokens than positions are an error.
        `rows`: see `layers.dropout`.
        """
        spec = self.spec
        tile = tile_last if spec.pool == "last" else tile_first
        tiled = tile(ids, mask, spec.class_tokens)  # [B, L+M-1]
        x = self._embed(tiled)  # [B, L+M-1, W]
        if spec.norm == "post":
            x = LayerNorm(spec.epsilon, name="ln_embedding", dtype=self.dtype)(x)
        x = dropout(x, spec.dropout if train else 0.0, rows)
        self.sow("intermediates", "embedding", x)
        inits, bias = BlockInit.text(spec.width, spec.depth), self._bias(tiled)
        x = run_layers(self, inits, x, tiled.mask, rows=rows, bias=bias, train=train)
        if spec.final_norm:
            x = LayerNorm(spec.epsilon, name="ln_final", dtype=self.dtype)(x)
        self.sow("intermediates", "final", x)
        return pooled(x, tiled, spec.pool, spec.class_tokens)  # [B, M, W]

    def _embed(self, tiled: Tiled) -> jax.Array:
        m = self.spec.class_tokens
        extra = 0 if self.spec.pool == "last" else m - 1  # positions of the copies
        length = tiled.ids.shape[1] - m + 1
        rows = (self.max_length or length) + extra
        rows = stored_rows(self, "position_embedding", rows)
        if length + extra > rows:
            raise UserError(
                f"Texts have {length} tokens, but the text tower was built for at most "
                f"{rows - extra}: shorten the field's length."
            )
        std = self.spec.embedding_std
        stds = (0.02, 0.01) if std is None else (std, std)  # CLIP's by default
        word_table = self._table("token_embedding", self.vocab_size, "vocab", std=stds[0])
        positions = self._table("position_embedding", rows, "position", std=stds[1])
        x = constrain(
            look_up(word_table, tiled.ids)
        )  # [B, L+M-1, W]; the training loop notices NaN
        # Padding gives no gradient to a word vector, even if a lexical head pools over it.
        x = jnp.where(tiled.mask[:, :, None], x, jax.lax.stop_gradient(x))
        if self.spec.pool == "last" and m > 1:
            # Copies share a position; only these vectors differ between them.
            ends = self._table("end_embedding", m, "class_token", std=stds[1])
            x = x + jnp.where(tiled.copy[:, :, None] >= 0, ends[tiled.copy], 0)
            x = x + positions[tiled.place]
        else:
            x = x + positions[: x.shape[1]]
        if types := self.spec.token_types:  # every token has the first type
            x = x + self._table("token_type_embedding", types, "token_type", std=stds[0])[0]
        return x.astype(self.dtype)

    def _bias(self, tiled: Tiled) -> jax.Array | None:
        """Returns the attention biases by distance and of `tokens_as_one`, added; None for none."""
        count, length, bias = self.spec.relative_positions, tiled.ids.shape[1], None
        if count:
            init, axes = initializers.normal(0.02), ("relative", "heads_bias")
            shape = (count, self.spec.heads)
            table = parameter(self, "relative_bias", init, shape, axes)
            bias = table[relative_buckets(length, count)].transpose(2, 0, 1)[None]  # [1, H, L, L]
        if self.spec.tokens_as_one and self.spec.class_tokens > 1:
            weight = weigh_as_one(tiled.copy, self.spec.class_tokens, self.spec.causal)
            bias = weight if bias is None else bias + weight
        return bias

    def _table(self, name: str, rows: int, axis: str, std: float) -> jax.Array:
        init, shape = initializers.normal(std), (rows, self.spec.width)
        return parameter(self, name, init, shape, (axis, "embed"))

    def word_table(self) -> jax.Array:
        """Returns `token_embedding` [V, W] for tied heads, after the call."""
        return nn.unbox(self.get_variable("params", "token_embedding"))


def relative_buckets(length: int, count: int, farthest: int = 128) -> np.ndarray:
    """Returns the bucket of each pair of positions (T5 and MPNet, both directions), int32 [L, L].

    Entry [i, j] is the bucket of j - i. The first half of the buckets is for keys up to the query,
    the second half for keys after it. In each half, the first half has one bucket per distance. The
    other buckets have equal widths in the logarithm of the distance; the last bucket also has all
    distances from `farthest` on.
    """
    ahead = np.arange(length)[None, :] - np.arange(length)[:, None]  # [L, L]
    half, distance = count // 2, np.abs(ahead)
    exact = half // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(farthest / exact)
    far = np.minimum(exact + (growth * (half - exact)).astype(np.int32), half - 1)
    bucket = np.where(distance < exact, distance, far)
    return (bucket + np.where(ahead > 0, half, 0)).astype(np.int32)  # [L, L]
