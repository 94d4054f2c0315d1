"""The convolutional image encoder."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    """Convolutions with batch norms, and a short cut around them.

    A bottleneck has convolutions of 1, 3 and 1, with 4 * inner output channels; other blocks have
    two convolutions of 3, with inner output channels.
    """

    def __init__(self, *, inputs: int, inner: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * inner if bottleneck else inner
        if bottleneck:
            self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
            self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
        else:
            self.conv1 = nn.Conv2d(inputs, inner, 3, stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
        self.bottleneck = bottleneck
        self.downsamples = stride > 1 or inputs != outputs
        if self.downsamples:
            self.downsample_conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample_bn = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs, h, w] -> [B, outputs, ceil(h / stride), ceil(w / stride)]."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.bottleneck:
            y = self.bn3(self.conv3(F.relu(y)))
        if self.downsamples:
            x = self.downsample_bn(self.downsample_conv(x))
        return F.relu(x + y)


class ResidualNetwork(nn.Module):
    """Images to one vector each, the mean over all pixels after the last block.

    The first stage has `stem` channels inside; they double per stage.
    """

    def __init__(self, *, stem: int, blocks: Sequence[int], bottleneck: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.stages, inputs = len(blocks), stem
        for stage, count in enumerate(blocks):
            layer, inner = nn.Sequential(), stem * 2**stage
            for index in range(count):
                stride = 2 if stage and not index else 1
                layer.append(
                    ResidualBlock(inputs=inputs, inner=inner, stride=stride, bottleneck=bottleneck)
                )
                inputs = 4 * inner if bottleneck else inner
            self.add_module(f"layer{stage + 1}", layer)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalized images [B, S, S, 3] -> [B, 1, W]."""
        x = F.relu(self.bn1(self.conv1(images.permute(0, 3, 1, 2))))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x.mean((2, 3))[:, None]
