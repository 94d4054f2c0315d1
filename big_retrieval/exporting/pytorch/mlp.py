"""Heads of several layers."""

import torch
from torch import nn

from big_retrieval.exporting.pytorch.blocks import ACTIVATIONS, Blocks, mask_bias


class MlpHead(nn.Module):
    """Two linear maps with an activation between them, and an optional batch norm after them."""

    def __init__(
        self,
        *,
        width: int,
        hidden: int,
        dim: int,
        activation: str = "relu",
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)
        self.bn = nn.BatchNorm1d(dim) if batch_norm else nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, M, W] -> [B, M, dim]."""
        x = self.fc2(self.activation(self.fc1(tokens)))
        return self.bn(x.transpose(1, 2)).transpose(1, 2)


class SharedTransformerHead(nn.Module):
    """A map per field, then layers that all fields share; `widths` has the width of each tower."""

    def __init__(
        self,
        *,
        widths: dict[str, int],
        dim: int,
        depth: int,
        heads: int,
        mlp: int,
        activation: str = "relu",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        for field, width in widths.items():
            self.add_module(f"{field}_projection", nn.Linear(width, dim))
        self.layers = Blocks(depth, dim, heads, mlp, "post", activation, epsilon)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, field: str
    ) -> torch.Tensor:
        """Positions [B, L, W] of a field -> first position [B, 1, dim]."""
        x = self.get_submodule(f"{field}_projection")(x)
        x = self.layers(x, None if mask is None else mask_bias(mask))
        return x[:, :1]
