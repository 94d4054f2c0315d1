"""Lexical heads: embeddings with one number per term of a vocabulary."""

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import ACTIVATIONS, EXCLUDED

BLOCK = 4096  # terms whose logits are in memory at a time

TERM_ACTIVATIONS = {  # all map EXCLUDED to 0
    "elu1p": lambda x: torch.where(x >= 0, x + 1, x.clamp(max=0).exp()),
    "log1p_relu": lambda x: F.relu(x).log1p(),
    "log1p_log1p_relu": lambda x: F.relu(x).log1p().log1p(),
    "relu": F.relu,
}


class LexicalHead(nn.Module):
    """Projects all positions [B, L, D] onto the terms, and pools them to [B, V].

    If `words` is above 0, the gate also keeps the terms of the text: the buffer `term_of` [words]
    has the term of each token id, -1 for none.
    """

    def __init__(
        self,
        *,
        width: int,
        terms: int,
        tied: bool = True,  # terms are rows of the word table
        some_rows: bool = False,  # the buffer `rows` selects rows
        words: int = 0,
        transform: str = "none",  # of a linear layer; "none" for no layer
        layer_norm: bool = True,
        epsilon: float = 1e-5,
        use_bias: bool = False,
        activation: str = "log1p_relu",
        pooling: str = "max",  # or "mean" over positions
        pooling_top_k: int | None = None,  # largest values in a mean; None for all
        pool_padding: bool = False,  # padding takes part
        normalise: bool = False,
        top_k: int | None = None,  # terms that the gate keeps; None for no gate
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
        """[B, L, D], mask bool [B, L], ids [B, L], word table [R, D] of a tied head -> [B, V]."""
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
        """Returns 1 at the terms that the gate keeps, else 0: [B, V]."""
        keep_mask = torch.zeros_like(x)
        if count := min(self.top_k, x.shape[1]):
            least = x.topk(count, dim=1).values[:, -1:]  # [B, 1]
            above, equal = x > least, x == least
            room = count - above.sum(1, keepdim=True)  # equal terms: the first ones are kept
            keep_mask = (above | (equal & (equal.int().cumsum(1) <= room))).to(x.dtype)
        if ids is None or self.term_of is None:
            return keep_mask
        terms = self.term_of[ids]  # [B, L]
        is_token = torch.where(mask & (terms >= 0), 1.0, 0.0)
        return keep_mask.scatter_reduce(1, terms.clamp(min=0), is_token, reduce="amax")
