"""Transformer layers."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

EXCLUDED = -1e30  # instead of -inf, so that a row that sees no key is finite

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


def mask_bias(mask: torch.Tensor) -> torch.Tensor:
    """Returns the bias of attention scores that excludes keys: bool [B, L] -> [B, 1, 1, L]."""
    return torch.where(mask, 0.0, EXCLUDED)[:, None, None, :]


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, L, W] -> [B, L, W]; the bias is added to the scores, broadcast to [B, H, L, L]."""
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )  # [B, H, L, W / H]
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, W] -> [B, L, W]."""
        return self.fc2(self.activation(self.fc1(x)))


class Block(nn.Module):
    """One layer with norms before attention and MLP (`norm`: "pre") or after the sums ("post")."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp: int,
        norm: str = "pre",
        activation: str = "gelu",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.ln_1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=epsilon)
        self.mlp = FeedForward(width, mlp, activation)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, L, W] -> [B, L, W]; bias: see `Attention`."""
        if self.norm == "pre":
            x = x + self.attention(self.ln_1(x), bias)
            return x + self.mlp(self.ln_2(x))
        x = self.ln_1(x + self.attention(x, bias))
        return self.ln_2(x + self.mlp(x))


class Blocks(nn.ModuleList):
    """`depth` layers in a row, with the arguments of `Block`."""

    def __init__(self, depth: int, *arguments: Any) -> None:
        super().__init__(Block(*arguments) for _ in range(depth))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, L, W] -> [B, L, W]; bias: see `Attention`."""
        for layer in self:
            x = layer(x, bias)
        return x


def mean_of_positions(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the mean [B, 1, W] of positions [B, L, W] at which the mask bool [B, L] is true."""
    if mask is None:
        return x.mean(1, keepdim=True)
    share = mask / mask.sum(1, keepdim=True).clamp(min=1)  # [B, L]
    return share[:, None] @ x


def weigh_as_one(copy: torch.Tensor, times: int, causal: bool = False) -> torch.Tensor:
    """Returns an attention bias that makes M = `times` class tokens together weigh as much as one.

    Args:
      copy: [B or 1, L], index of the class token; -1 for other tokens.
      causal: True if a class token sees only itself and earlier ones.

    Returns:
      [B or 1, 1, L or 1, L], by query and key.
    """
    seen = torch.full_like(copy, times)
    if causal:
        seen = torch.where(copy >= 0, copy + 1, seen)
    weights = -torch.log(seen.float())[:, None, :, None]
    return torch.where((copy >= 0)[:, None, None, :], weights, 0.0)
