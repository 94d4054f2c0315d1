"""Sizes, inputs, weights and folders for the makers of tests/interop/data; needs torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

IDS = np.array([[3, 7, 9, 4, 8, 39], [3, 5, 39, 1, 1, 1], [3, 6, 11, 12, 39, 1]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
PIXELS = np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**SIZES, "intermediate_size": 48, "vocab_size": 40, "max_position_embeddings": 16}
DISTILBERT = {
    "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 40,
    "max_position_embeddings": 16,
}  # fmt: skip
ROBERTA = {"max_position_embeddings": 18, "type_vocab_size": 1, "pad_token_id": 1}
Arrays = dict[str, np.ndarray]


def perturbed(model: Any) -> Any:
    """A model in evaluation mode whose norms and biases are not 1 and 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in model.named_buffers():
            if buffer.dtype.is_floating_point and "mask" not in name:
                buffer += 0.1 * torch.rand(buffer.shape, generator=generator)
    return model.eval()


def gradients(model: Any) -> Arrays:
    """Gradients by name."""
    return {f"grad.{n}": p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def weighted(out: Any, seed: int = 1) -> tuple[Any, np.ndarray]:
    """A random weighted sum of the outputs, and the weights."""
    weights = np.random.default_rng(seed).normal(size=out.shape).astype(np.float32)
    return (out * torch.tensor(weights)).sum(), weights


def write(
    folder: Path,
    state: dict[str, Any],
    name: str = "",
    config: dict[str, Any] | None = None,
    weights: str = "model.safetensors",
) -> None:
    """A model folder as the hub has it; without a `config`, the weights alone."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: value.detach().contiguous().clone() for key, value in state.items()}
    save_file(state, folder / weights, {"format": "pt"})
    if config is not None:
        (folder / name).write_text(json.dumps(config, indent=1))
