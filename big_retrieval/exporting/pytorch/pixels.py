"""From pixels to what towers of images read."""

import torch


def normalised(
    pixels: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> torch.Tensor:
    """Pixels uint8 [n, S, S, 3] with the mean and the deviation of the channels taken out."""
    x = pixels.float() / 255
    return (x - x.new_tensor(mean)) / x.new_tensor(std)
