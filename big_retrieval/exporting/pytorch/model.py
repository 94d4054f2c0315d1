"""What all models have: they are opened from a folder, and encode texts, images and arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from big_retrieval.exporting.pytorch.images import read_image

TEXTS: dict[str, dict[str, Any]] = {}  # of every text field, see `Tokenizer`
IMAGES: dict[str, dict[str, Any]] = {}  # of every image field, see `read_image`


class RetrievalModel(nn.Module):
    """A model; an export has one of this name, with its own towers and heads."""

    tokenizer: Any

    @classmethod
    def load(cls, folder: str | Path) -> "RetrievalModel":
        """The model with the weights of a folder."""
        model = cls(Path(folder))
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
        return model.eval()

    @torch.no_grad()
    def encode(self, field: str, **arrays: Any) -> torch.Tensor:
        """Embeddings of a batch of arrays of a field, which the method `embed_<field>` lists."""
        device = next(self.parameters()).device
        ready = {name: torch.as_tensor(values, device=device) for name, values in arrays.items()}
        ready = {name: x.float() if x.is_floating_point() else x for name, x in ready.items()}
        return getattr(self, f"embed_{field}")(**ready)

    def encode_texts(
        self,
        texts: Sequence[str],
        field: str,
        titles: Sequence[str] = (),
        batch_size: int = 64,
    ) -> torch.Tensor:
        """Embeddings of texts, with their titles if the field has some."""
        found = []
        for start in range(0, len(texts), batch_size):
            rows = slice(start, start + batch_size)
            ids, mask = self.tokenizer(texts[rows], titles[rows], **TEXTS[field])
            found.append(self.encode(field, ids=ids, mask=mask))
        return torch.cat(found)

    def encode_images(
        self,
        images: Sequence[Any],
        field: str,
        batch_size: int = 64,
    ) -> torch.Tensor:
        """Embeddings of images: files, PIL images or uint8 arrays [H, W, 3]."""
        found = []
        for start in range(0, len(images), batch_size):
            rows = images[start : start + batch_size]
            pixels = np.stack([read_image(image, **IMAGES[field]) for image in rows])
            found.append(self.encode(field, pixels=pixels))
        return torch.cat(found)
