"""Encoders of the regions of an image: features [B, R, F] and boxes [B, R, 4].

Boxes are x1, y1, x2, y2, divided by the image's width and height.
"""

import torch
from torch import Tensor, nn


class RegionGraphLayer(nn.Module):
    """v + BN(W (R g(v))), where the relation of two regions is R = theta(v) phi(v)^T / count.

    Args:
      width: of a region's vector.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta, self.phi = nn.Linear(width, width), nn.Linear(width, width)
        self.g, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width)

    def forward(self, v: Tensor) -> Tensor:
        """[B, R, W] -> [B, R, W]."""
        relation = self.theta(v) @ self.phi(v).transpose(1, 2) / v.shape[1]  # [B, R, R]
        y = self.out(relation @ self.g(v))
        return v + self.bn(y.transpose(1, 2)).transpose(1, 2)


class RegionGraphTower(nn.Module):
    """VSRN's image encoder: graph layers over the regions, then a GRU that reads them in order.

    Args:
      dim: F, numbers of a region.
      width: of the vectors of regions and of the result.
      depth: graph layers.
      normalise_regions: whether projected regions have norm 1 in front of the graph.
    """

    def __init__(self, dim: int, width: int, depth: int, normalise_regions: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, width)
        self.layers = nn.ModuleList(RegionGraphLayer(width) for _ in range(depth))
        self.gru = nn.GRU(width, width, batch_first=True)
        self.bn = nn.BatchNorm1d(width)
        self.normalise_regions = normalise_regions

    def forward(self, features: Tensor, boxes: Tensor) -> Tensor:
        """Features [B, R, F] and boxes, which are not read -> [B, 1, W]."""
        del boxes
        v = self.fc(features)
        v = nn.functional.normalize(v, dim=-1) if self.normalise_regions else v
        for layer in self.layers:
            v = layer(v)
        states, _ = self.gru(nn.functional.normalize(v, dim=-1))  # [B, R, W]
        return self.bn(states[:, -1])[:, None]
