"""What all ONNX exports have: their files are run by onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

ENCODERS: dict[str, str] = {}  # file of every field's encoder
TYPES: dict[str, str] = {}  # of the arrays that encoders read, where they are not float32


class OnnxModel:
    """A model; an export has one of this name.

    Args:
      folder: where its files are.
      providers: what onnxruntime runs them on, such as "CUDAExecutionProvider".
    """

    tokenizer: Any

    def __init__(
        self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)
    ) -> None:
        self.folder, self.providers = Path(folder), list(providers)
        self.sessions: dict[str, Any] = {}

    def run(self, file: str, **arrays: Any) -> np.ndarray:
        """What a file makes of some arrays."""
        if file not in self.sessions:
            opened = onnxruntime.InferenceSession(self.folder / file, providers=self.providers)
            self.sessions[file] = opened
        ready = {
            name: np.asarray(values, TYPES.get(name, "float32")) for name, values in arrays.items()
        }
        return self.sessions[file].run(None, ready)[0]

    def encode(self, field: str, **arrays: Any) -> np.ndarray:
        """Embeddings of a batch of arrays of a field, which its encoder's file lists."""
        return self.run(ENCODERS[field], **arrays)

    def scores(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Scores [rows, columns] of embeddings [rows, ...] and [columns, ...]."""
        return a @ b.T if a.ndim == 2 else self.run("scores.onnx", a=a, b=b)
