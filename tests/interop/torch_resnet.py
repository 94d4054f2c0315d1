"""A residual network in plain PyTorch with the names of torchvision's; needs torch."""

from typing import Any

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions, or three (1, 3, 1) whose second one has the stride."""

    def __init__(self, channels: int, inner: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.out = 4 * inner if bottleneck else inner
        shapes = [(channels, inner, 3, stride), (inner, inner, 3, 1)]
        if bottleneck:
            shapes = [(channels, inner, 1, 1), (inner, inner, 3, stride), (inner, self.out, 1, 1)]
        self.count = len(shapes)
        for k, (a, b, size, step) in enumerate(shapes, 1):
            conv = nn.Conv2d(a, b, size, step, padding=size // 2, bias=False)
            setattr(self, f"conv{k}", conv)
            setattr(self, f"bn{k}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride != 1 or channels != self.out:
            conv = nn.Conv2d(channels, self.out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(self.out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for k in range(1, self.count + 1):
            y = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(y))
            y = torch.relu(y) if k < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """[B, 3, S, S] -> [B, W], the vector in front of `fc`."""

    def __init__(
        self, blocks: tuple[int, ...], bottleneck: bool, stem: int = 64, classes: int = 10
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.stages, channels = len(blocks), stem
        for stage, count in enumerate(blocks):
            row = []
            for i in range(count):
                stride = 2 if stage and not i else 1
                row.append(Block(channels, stem * 2**stage, stride, bottleneck))
                channels = row[-1].out
            setattr(self, f"layer{stage + 1}", nn.Sequential(*row))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x.mean((2, 3))


def drawn(*args: Any, seed: int = 0, **options: Any) -> ResNet:
    """A network whose norms and running averages are not at their starts."""
    torch.manual_seed(seed)
    model = ResNet(*args, **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.2)
                module.running_mean.normal_(0, 0.2)  # type: ignore
                module.running_var.uniform_(0.5, 1.5)  # type: ignore
    return model


def arrays(model: ResNet) -> dict[str, np.ndarray]:
    """Its state by name."""
    return {name: x.detach().numpy().copy() for name, x in model.state_dict().items()}


def pixels(images: Any) -> torch.Tensor:
    """[B, S, S, 3] -> [B, 3, S, S]."""
    return torch.tensor(np.asarray(images).transpose(0, 3, 1, 2))
