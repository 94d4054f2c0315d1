"""The text transformer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import (
    EXCLUDED,
    Blocks,
    mask_bias,
    mean_of_positions,
    weigh_as_one,
)


class TextTransformer(nn.Module):
    """Texts to class tokens, which are copies of the first or the last id, or to all positions."""

    def __init__(
        self,
        *,
        vocab_size: int,
        positions: int,  # rows of the position table
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        class_tokens: int = 1,
        pool: str = "first",  # "first", "last": class tokens there; "mean"; "none"
        norm: str = "post",  # see `Block`
        final_norm: bool = True,  # after the last layer
        causal: bool = False,  # a position sees itself and earlier ones
        token_types: int = 0,  # rows of BERT's table of segments
        relative_positions: int = 0,  # buckets of the bias by distance
        tokens_as_one: bool = False,  # class tokens weigh as much as one
        activation: str = "gelu",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.class_tokens = class_tokens
        self.pool = pool
        self.causal = causal
        self.tokens_as_one = tokens_as_one
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.position_embedding = nn.Parameter(torch.empty(positions, width))
        self.end_embedding = self.token_type_embedding = self.relative_bias = None
        if pool == "last" and class_tokens > 1:
            self.end_embedding = nn.Parameter(torch.empty(class_tokens, width))
        if token_types:
            self.token_type_embedding = nn.Parameter(torch.empty(token_types, width))
        if relative_positions:
            self.relative_bias = nn.Parameter(torch.empty(relative_positions, heads))
        post = norm == "post"
        self.ln_embedding = nn.LayerNorm(width, eps=epsilon) if post else nn.Identity()
        self.layers = Blocks(depth, width, heads, mlp, norm, activation, epsilon)
        self.ln_final = nn.LayerNorm(width, eps=epsilon) if final_norm else nn.Identity()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids [B, L] and mask [B, L], true at tokens -> [B, M, W], or all positions."""
        copies = self.class_tokens
        tile = tile_last if self.pool == "last" else tile_first
        ids, mask, positions, copy = tile(ids, mask, copies)  # [B, L + M - 1] each
        x = F.embedding(ids, self.token_embedding)  # [B, L + M - 1, W]
        if self.end_embedding is not None:
            x = x + torch.where((copy >= 0)[:, :, None], self.end_embedding[copy], 0.0)
        x = x + self.position_embedding[positions]
        if self.token_type_embedding is not None:
            x = x + self.token_type_embedding[0]
        x = self.layers(self.ln_embedding(x), self._bias(mask, copy))
        x = self.ln_final(x)
        if self.pool == "first":
            return x[:, :copies]
        if self.pool == "mean":
            return mean_of_positions(x, mask)
        if self.pool == "last":
            first = (copy == 0).int().argmax(1, keepdim=True)  # [B, 1]
            positions = first + torch.arange(copies, device=x.device)
            return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        return x

    def _bias(self, mask: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """Returns the bias of attention scores by mask, order, distance and class token."""
        bias, length = mask_bias(mask), mask.shape[1]
        if self.causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
            bias = bias + torch.where(ahead, EXCLUDED, 0.0)
        if self.relative_bias is not None:
            buckets = relative_buckets(length, len(self.relative_bias)).to(mask.device)
            bias = bias + self.relative_bias[buckets].permute(2, 0, 1)
        if self.tokens_as_one and self.class_tokens > 1:
            bias = bias + weigh_as_one(copy, self.class_tokens, self.causal)
        return bias


def tile_first(
    ids: torch.Tensor, mask: torch.Tensor, times: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Repeats the first token of texts [B, L]; each copy has another position.

    Returns:
      Ids and mask [B, L + times - 1], rows of the position table, and indices of copies (-1 for
      other tokens) [1, L + times - 1].
    """
    ids, mask = (torch.cat([x[:, :1].expand(-1, times), x[:, 1:]], dim=1) for x in (ids, mask))
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    return ids, mask, positions, torch.where(positions < times, positions, -1)


def tile_last(
    ids: torch.Tensor, mask: torch.Tensor, times: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Repeats the last token of each text; all copies have its position; see `tile_first`."""
    end = mask.sum(1, keepdim=True) - 1  # [B, 1]
    order = torch.arange(ids.shape[1] + times - 1, device=ids.device)[None]
    after = order - end  # [B, L + times - 1], 0 at the last token
    positions = order - after.clamp(0, times - 1)
    copy = torch.where((after >= 0) & (after < times), after, -1)
    return ids.gather(1, positions.clamp(min=0)), after < times, positions, copy


def relative_buckets(length: int, count: int, farthest: int = 128) -> torch.Tensor:
    """Returns the bucket of each pair of positions, as in T5 and MPNet: [L, L], by query and key.

    One half of the buckets is for keys after the query. In each half, short distances have one
    bucket each; the other buckets grow with the logarithm of the distance up to `farthest`.
    """
    positions = torch.arange(length)
    ahead = positions[None, :] - positions[:, None]
    half, distance = count // 2, ahead.abs()
    exact = half // 2
    growth = torch.log(distance.clamp(min=1).double() / exact) / math.log(farthest / exact)
    far = (exact + (growth * (half - exact)).int()).clamp(max=half - 1)
    return torch.where(distance < exact, distance, far) + torch.where(ahead > 0, half, 0)
