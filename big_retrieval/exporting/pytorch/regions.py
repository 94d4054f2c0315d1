"""Encoders of image regions.

Boxes are x1, y1, x2, y2, divided by the image's width and height.
"""

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import Blocks


class GraphLayer(nn.Module):
    """v + BN(W (R g(v))), where the relation R of two regions is theta(v) phi(v)^T / count."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Linear(width, width)
        self.phi = nn.Linear(width, width)
        self.g = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width)

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        """[B, R, W] -> [B, R, W]."""
        relation = self.theta(v) @ self.phi(v).transpose(1, 2) / v.shape[1]  # [B, R, R]
        y = self.out(relation @ self.g(v))
        return v + self.bn(y.transpose(1, 2)).transpose(1, 2)


class RegionGraphNetwork(nn.Module):
    """Regions to one vector: graph layers over all regions, then a GRU that reads them in order."""

    def __init__(self, *, dim: int, width: int, depth: int, normalise_regions: bool = True) -> None:
        super().__init__()
        self.normalise_regions = normalise_regions
        self.fc = nn.Linear(dim, width)
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(depth))
        self.gru = nn.GRU(width, width, batch_first=True)
        self.bn = nn.BatchNorm1d(width)

    def forward(self, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        """Features [B, R, dim] -> [B, 1, W]; boxes are not used."""
        del boxes
        v = self.fc(features)
        if self.normalise_regions:
            v = F.normalize(v, dim=-1)
        for layer in self.layers:
            v = layer(v)
        states, _ = self.gru(F.normalize(v, dim=-1))  # [B, R, W]
        return self.bn(states[:, -1])[:, None]


class RegionTransformerNetwork(nn.Module):
    """Regions and boxes to all positions; the first position represents the image."""

    def __init__(
        self,
        *,
        dim: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        activation: str = "relu",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim + 5, width)
        self.fc2 = nn.Linear(width, width)
        self.layers = Blocks(depth, width, heads, mlp, "post", activation, epsilon)

    def forward(self, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        """Features [B, R, dim] and boxes [B, R, 4] -> [B, R + 1, W]."""
        left, top, right, bottom = boxes.split(1, dim=-1)  # [B, R, 1] each
        x = torch.cat([features, boxes, (right - left) * (bottom - top)], dim=-1)
        x = F.pad(x, (0, 0, 1, 0))  # the position of the image
        return self.layers(self.fc2(F.relu(self.fc1(x))))
