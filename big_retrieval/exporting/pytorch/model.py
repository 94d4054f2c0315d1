"""Base class of exports to PyTorch."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn


def normalised(
    pixels: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> torch.Tensor:
    """Normalizes pixels uint8 [n, S, S, 3] by the mean and deviation of the channels."""
    x = pixels.float() / 255
    return (x - x.new_tensor(mean)) / x.new_tensor(std)


class TorchModel(nn.Module):
    """Towers and heads; an export defines the subclass `RetrievalModel`."""

    concatenate = staticmethod(torch.cat)

    @classmethod
    def load(cls, folder: str | Path) -> Any:
        """Returns the model with the weights of a folder."""
        model: Any = cls(Path(folder))
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
        return model.eval()

    @torch.no_grad()
    def encode(self, field: str, **arrays: Any) -> torch.Tensor:
        """Returns embeddings of a batch; the arrays of a field are arguments of `embed_<field>`."""
        device = next(self.parameters()).device
        ready = {name: torch.as_tensor(values, device=device) for name, values in arrays.items()}
        ready = {name: x.float() if x.is_floating_point() else x for name, x in ready.items()}
        return getattr(self, f"embed_{field}")(**ready)

    def scores(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns scores [rows, columns] of embeddings [rows, ...] and [columns, ...]."""
        return a @ b.T if a.ndim == 2 else self.topology.score(a, b)
