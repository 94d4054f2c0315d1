"""The head of two linear layers."""

import torch
from torch import Tensor, nn


class TwoLayerHead(nn.Module):
    """`fc1`, a ReLU, `fc2`, and perhaps a batch norm.

    Args:
      width: of the vectors of the tower.
      hidden: numbers between the layers.
      dim: of an embedding.
      batch_norm: whether there is one.
    """

    def __init__(self, width: int, hidden: int, dim: int, batch_norm: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)
        self.bn = nn.BatchNorm1d(dim) if batch_norm else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """Class tokens [B, M, W] -> raw embeddings [B, M, dim]."""
        x = self.fc2(torch.relu(self.fc1(tokens)))
        return self.bn(x.transpose(1, 2)).transpose(1, 2)
