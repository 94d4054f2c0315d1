"""The convolutional image encoder, in the form of torchvision (v1.5)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ResNetBlock(nn.Module):
    """Two convolutions, or three (a bottleneck), with batch norms; around them a short cut.

    Args:
      given: channels of the input.
      inner: channels of the convolutions of 3 x 3.
      stride: of the block.
      bottleneck: three convolutions; the result has 4 * inner channels.
    """

    def __init__(self, given: int, inner: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        result = 4 * inner if bottleneck else inner
        if bottleneck:
            self.conv1 = nn.Conv2d(given, inner, 1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
            self.conv3 = nn.Conv2d(inner, result, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(result)
        else:
            self.conv1 = nn.Conv2d(given, inner, 3, stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
        self.bottleneck, self.changes_shape = bottleneck, stride > 1 or given != result
        if self.changes_shape:
            self.downsample_conv = nn.Conv2d(given, result, 1, stride, bias=False)
            self.downsample_bn = nn.BatchNorm2d(result)

    def forward(self, x: Tensor) -> Tensor:
        """[B, given, h, w] -> [B, result, ceil(h / stride), ceil(w / stride)]."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.bottleneck:
            y = self.bn3(self.conv3(torch.relu(y)))
        if self.changes_shape:
            x = self.downsample_bn(self.downsample_conv(x))
        return torch.relu(x + y)


class ResNetTower(nn.Module):
    """Images -> one vector each, the mean over all places behind the last block.

    Args:
      stem: channels of the first convolution; twice as many inside of every further stage.
      blocks: how many each stage has.
      bottleneck: see `ResNetBlock`.
    """

    def __init__(self, stem: int, blocks: Sequence[int], bottleneck: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.names, given = [], stem
        for stage, count in enumerate(blocks):
            for number in range(count):
                inner, stride = stem * 2**stage, 2 if stage and not number else 1
                self.names.append(f"layer{stage + 1}_{number}")
                self.add_module(self.names[-1], ResNetBlock(given, inner, stride, bottleneck))
                given = 4 * inner if bottleneck else inner

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images [B, S, S, 3] -> [B, 1, W]."""
        x = torch.relu(self.bn1(self.conv1(images.permute(0, 3, 1, 2))))
        x = nn.functional.max_pool2d(x, 3, stride=2, padding=1)
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))[:, None]
