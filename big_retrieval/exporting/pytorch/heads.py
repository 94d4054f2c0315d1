"""Dense heads."""

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import mean_of_positions


class ProjectionHead(nn.Module):
    """One linear map without bias, the same for all class tokens."""

    def __init__(
        self,
        *,
        width: int | None = None,
        dim: int | None = None,  # None for no map
        spheres: int | None = None,  # number of blocks of an embedding
        pool: str = "tower",  # class tokens; or "first", "mean" of positions
    ) -> None:
        super().__init__()
        self.spheres = spheres
        self.pool = pool
        self.weight = None if dim is None else nn.Parameter(torch.empty(dim, width))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[B, M, W] -> [B, M, dim], or [B, spheres, dim / spheres]; the mask is for a mean."""
        if self.pool == "first":
            tokens = tokens[:, :1]
        elif self.pool == "mean":
            tokens = mean_of_positions(tokens, mask)
        x = tokens if self.weight is None else F.linear(tokens, self.weight)
        return x if self.spheres is None else x.reshape(x.shape[0], self.spheres, -1)
