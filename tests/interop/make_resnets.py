"""Residual networks of plain PyTorch: vectors in both modes, averages, gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers import noise
from tests.interop import torch_resnet
from tests.interop.torch_models import Arrays, write

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # ImageNet's
SIZES: dict[str, dict[str, Any]] = {
    "resnet_small": {"blocks": (1, 1), "bottleneck": True, "stem": 8},
    "resnet_deep": {"blocks": (2, 1, 3), "bottleneck": False, "stem": 4},
    "resnet_bottleneck": {"blocks": (2, 1), "bottleneck": True, "stem": 4},
    "resnet_basic": {"blocks": (2, 1), "bottleneck": False, "stem": 4},
}


def weights(name: str, folder: Path) -> torch_resnet.ResNet:
    """A network in evaluation mode, and its file."""
    model = torch_resnet.drawn(**SIZES[name]).eval()
    write(folder, model.state_dict())
    return model


def only_weights(name: str, folder: Path) -> Arrays:
    weights(name, folder)
    return {}


def of_images(name: str, folder: Path) -> Arrays:
    """Weights, and the vectors of images at 224 pixels, prepared as ImageNet's are."""
    model = weights(name, folder)
    values = ((noise(2, 224, 224, 3) / 255 - MEAN) / STD).astype(np.float32)
    return {"out": model(torch_resnet.pixels(values)).detach().numpy()}


def of_modes(name: str, folder: Path) -> Arrays:
    """Weights; values of evaluation and of two passes of training; both gradients."""
    model = weights(name, folder)
    found = {
        f"eval{size}": model(torch_resnet.pixels(images(size))).detach().numpy()
        for size in (32, 37)
    }
    model.train()
    for step in range(2):
        x = images(37) * (1 + step) + step
        found[f"train{step}"] = model(torch_resnet.pixels(x)).detach().numpy()
    found |= {
        f"moved.{key}": x for key, x in torch_resnet.arrays(model).items() if "running" in key
    }
    for mode in ("train", "frozen"):
        found |= derivatives(
            torch_resnet.drawn(**SIZES[name]).double().train(mode == "train"), mode
        )
    return found


def images(size: int, dtype: Any = np.float32) -> np.ndarray:
    """[4, size, size, 3], from -2 to 2."""
    return (noise(4, size, size, 3) / 64 - 2).astype(dtype)


def derivatives(model: torch_resnet.ResNet, mode: str) -> Arrays:
    """Gradients of the sum of squares by parameters and by pixels, in float64."""
    given = torch_resnet.pixels(images(21, np.float64)).requires_grad_()
    model(given).square().sum().backward()
    assert given.grad is not None
    found = {f"{mode}.pixels": given.grad.numpy().transpose(0, 2, 3, 1)}
    for name, parameter in model.named_parameters():
        if isinstance(parameter.grad, torch.Tensor):
            found[f"{mode}.grad.{name}"] = parameter.grad.numpy()
    return found


KINDS: dict[str, Callable[[str, Path], Arrays]] = {
    "resnet_small": of_images,
    "resnet_deep": only_weights,
    "resnet_bottleneck": of_modes,
    "resnet_basic": of_modes,
}
