"""The peer of `benchmarks.input_pipeline`: a PyTorch DataLoader that reads the same files.

Random crop and mirror drawn as ours are, Pillow for decoding and resizing, uint8 tensors out: what
a careful user without torchvision would write. PyTorch is imported when asked for.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from big_retrieval.data.images.transforms import crop_box


def available() -> bool:
    """Whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


class Pictures:
    """A map-style data set of the generated files."""

    def __init__(self, folder: Path, images: int, size: int, length: int):
        self._folder, self._images, self._size, self._length = folder, images, size, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        rng = np.random.default_rng(index)
        with Image.open(self._folder / f"{index % self._images}.jpg") as picture:
            whole = picture.convert("RGB")
        top, left, height, width = crop_box(
            whole.height, whole.width, (0.5, 1.0), (3 / 4, 4 / 3), rng
        )
        part = whole.crop((left, top, left + width, top + height))
        part = part.resize((self._size, self._size), Image.Resampling.BICUBIC)
        pixels = np.asarray(part)
        return np.ascontiguousarray(pixels[:, ::-1] if rng.random() < 0.5 else pixels)


def read(folder: Path, images: int, size: int, batch: int, batches: int, workers: int) -> None:
    """Goes through all batches once, the start of the workers included."""
    torch: Any = importlib.import_module("torch.utils.data")
    pictures = Pictures(folder, images, size, batch * batches)
    loader = torch.DataLoader(pictures, batch_size=batch, num_workers=workers, shuffle=True)
    for _ in loader:
        pass
