"""Lexical heads: embeddings with one number for every term of a vocabulary."""

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import ACTIVATIONS, EXCLUDED

BLOCK = 4096  # terms whose logits are there at a time

TERM_ACTIVATIONS = {  # all of them take EXCLUDED to 0
    "elu1p": lambda x: torch.where(x >= 0, x + 1, x.clamp(max=0).exp()),
    "log1p_relu": lambda x: F.relu(x).log1p(),
    "log1p_log1p_relu": lambda x: F.relu(x).log1p().log1p(),
    "relu": F.relu,
}


class LexicalHead(nn.Module):
    """All positions of a row projected onto the terms, and pooled.

    Args:
      width: D.
      terms: V.
      tied: whether terms are rows of the tower's word table; else the head has a table of its own.
      some_rows: whether they are not all rows of it, but those that the buffer `rows` names.
      words: ids that the tokenizer has, where the gate also leaves the terms of the text itself:
        the buffer `term_of` has the term of each, -1 for none.
      transform: activation of a linear layer in front; "none": there is no such layer.
      layer_norm: whether a norm stands in front of the terms.
      epsilon: of this norm.
      use_bias: whether terms have a bias.
      activation: of `TERM_ACTIVATIONS`.
      pooling: "max" or "mean" over the positions.
      pooling_top_k: of how many of the largest values a mean is; None: of all.
      pool_padding: whether padding takes part.
      normalise: whether embeddings have the norm 1 before the gate.
      top_k: how many of the largest terms the gate leaves; None: there is no gate.
    """

    def __init__(
        self,
        *,
        width: int,
        terms: int,
        tied: bool = True,
        some_rows: bool = False,
        words: int = 0,
        transform: str = "none",
        layer_norm: bool = True,
        epsilon: float = 1e-5,
        use_bias: bool = False,
        activation: str = "log1p_relu",
        pooling: str = "max",
        pooling_top_k: int | None = None,
        pool_padding: bool = False,
        normalise: bool = False,
        top_k: int | None = None,
    ) -> None:
        super().__init__()
        self.transform = ACTIVATIONS.get(transform)
        self.dense = nn.Linear(width, width) if self.transform else None
        self.ln = nn.LayerNorm(width, eps=epsilon) if layer_norm else nn.Identity()
        self.weight = None if tied else nn.Parameter(torch.empty(width, terms))
        self.bias = nn.Parameter(torch.empty(terms)) if use_bias else None
        self.activation = TERM_ACTIVATIONS[activation]
        self.pooling, self.pooling_top_k, self.pool_padding = pooling, pooling_top_k, pool_padding
        self.normalise, self.top_k = normalise, top_k
        self.register_buffer("rows", torch.empty(terms, dtype=torch.long) if some_rows else None)
        self.register_buffer("term_of", torch.empty(words, dtype=torch.long) if words else None)

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None = None,
        ids: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All positions [B, L, D] -> [B, V].

        Args:
          tokens: [B, L, D].
          mask: bool [B, L], true at tokens; None: at all.
          ids: [B, L], of texts.
          table: the word table [R, D] of a tied head.
        """
        if self.dense is not None:
            tokens = self.transform(self.dense(tokens))
        tokens = self.ln(tokens)
        weight = self.weight
        if table is not None:
            weight = (table if self.rows is None else table[self.rows]).T  # [D, V]
        used = None if self.pool_padding else mask
        blocks = []
        for start in range(0, weight.shape[1], BLOCK):
            logits = tokens @ weight[:, start : start + BLOCK]
            if self.bias is not None:
                logits = logits + self.bias[start : start + BLOCK]
            blocks.append(self.pool(logits, used))
        x = torch.cat(blocks, dim=1)
        x = F.normalize(x, dim=-1) if self.normalise else x
        return x if self.top_k is None else x * self.gate(x, mask, ids)

    def pool(self, logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Logits [B, L, C] -> [B, C]."""
        count = torch.tensor(logits.shape[1], device=logits.device)
        if mask is not None:
            logits = torch.where(mask[:, :, None], logits, EXCLUDED)
            count = mask.sum(1, keepdim=True)  # [B, 1]
        if self.pooling == "max":
            return self.activation(logits.amax(1))
        if self.pooling_top_k is not None and self.pooling_top_k < logits.shape[1]:
            logits = logits.topk(self.pooling_top_k, dim=1).values
            count = count.clamp(max=self.pooling_top_k)
        return self.activation(logits).sum(1) / count.clamp(min=1)

    def gate(
        self, x: torch.Tensor, mask: torch.Tensor | None, ids: torch.Tensor | None
    ) -> torch.Tensor:
        """1 at the terms that stay, else 0: [B, V]."""
        kept = torch.zeros_like(x)
        if count := min(self.top_k, x.shape[1]):
            least = x.topk(count, dim=1).values[:, -1:]  # [B, 1]
            above, equal = x > least, x == least
            room = count - above.sum(1, keepdim=True)  # of equal terms the first ones stay
            kept = (above | (equal & (equal.int().cumsum(1) <= room))).to(x.dtype)
        if ids is None or self.term_of is None:
            return kept
        terms = self.term_of[ids]  # [B, L]
        own = torch.where(mask & (terms >= 0), 1.0, 0.0)
        return kept.scatter_reduce(1, terms.clamp(min=0), own, reduce="amax")
