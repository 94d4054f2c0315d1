"""Base class of exports to ONNX."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime


class OnnxFiles:
    """Files that onnxruntime runs; an export defines the subclass `OnnxModel`.

    Args:
      providers: devices for onnxruntime, such as "CUDAExecutionProvider".
    """

    ENCODERS: ClassVar[dict[str, str]]  # field -> file of its encoder
    TYPES: ClassVar[dict[str, str]]  # input of an encoder -> its type, unless float32
    concatenate = staticmethod(np.concatenate)

    def __init__(
        self, folder: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)
    ) -> None:
        self.folder, self.providers = Path(folder), list(providers)
        self.sessions: dict[str, Any] = {}

    def run(self, file: str, **arrays: Any) -> np.ndarray:
        """Returns the output of a file."""
        if file not in self.sessions:
            session = onnxruntime.InferenceSession(self.folder / file, providers=self.providers)
            self.sessions[file] = session
        inputs = {
            name: np.asarray(values, self.TYPES.get(name, "float32"))
            for name, values in arrays.items()
        }
        return self.sessions[file].run(None, inputs)[0]

    def encode(self, field: str, **arrays: Any) -> np.ndarray:
        """Returns embeddings of a batch; the arrays of a field are the inputs of its ONNX file."""
        return self.run(self.ENCODERS[field], **arrays)

    def scores(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Returns scores [rows, columns] of embeddings [rows, ...] and [columns, ...]."""
        return a @ b.T if a.ndim == 2 else self.run("scores.onnx", a=a, b=b)
