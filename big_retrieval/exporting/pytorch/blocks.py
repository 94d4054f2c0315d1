"""Transformer layers."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

EXCLUDED = -1e30  # instead of -inf: a row that may look at nothing is finite

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


def mask_bias(mask: torch.Tensor) -> torch.Tensor:
    """What attention adds to its scores where keys do not count: bool [B, L] -> [B, 1, 1, L]."""
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
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
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
    """One layer, with its norms in front of attention and MLP ("pre") or behind the sums ("post").

    Args:
      width: W.
      heads: of the attention.
      mlp: width inside of the MLP.
      norm: "pre" or "post".
      activation: of the MLP.
      epsilon: of the norms.
    """

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
    """Layers one after another.

    Args:
      depth: how many.
      *of_each: the arguments of each `Block`.
    """

    def __init__(self, depth: int, *of_each: Any) -> None:
        super().__init__(Block(*of_each) for _ in range(depth))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[B, L, W] -> [B, L, W]; bias: see `Attention`."""
        for layer in self:
            x = layer(x, bias)
        return x


def mean_of_positions(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The mean [B, 1, W] of the positions [B, L, W] where the mask, bool [B, L], is true."""
    if mask is None:
        return x.mean(1, keepdim=True)
    share = mask / mask.sum(1, keepdim=True).clamp(min=1)  # [B, L]
    return share[:, None] @ x


def weigh_as_one(copy: torch.Tensor, times: int, causal: bool = False) -> torch.Tensor:
    """What attention adds so that M class tokens together weigh what a single one would.

    Args:
      copy: [B or 1, L], which class token it is, 0 to M - 1; -1: none.
      times: M.
      causal: whether a class token sees only itself and those before it.

    Returns:
      [B or 1, 1, L or 1, L], by query and key.
    """
    seen = torch.full_like(copy, times)
    if causal:
        seen = torch.where(copy >= 0, copy + 1, seen)
    weights = -torch.log(seen.float())[:, None, :, None]
    return torch.where((copy >= 0)[:, None, None, :], weights, 0.0)
