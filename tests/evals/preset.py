"""Base class of encoders whose embeddings tests know."""

from typing import Any

import numpy as np

from big_retrieval.data.pipeline import eval_batches
from big_retrieval.inference.encoder import Encoder


class PresetEncoder(Encoder):
    """An encoder of batches in the order of the source, by `embeddings`."""

    def encode(
        self, weights: Any, field: str, source: Any, reader: Any, **keys: Any
    ) -> tuple[Any, np.ndarray]:
        how: Any = {"batch_size": self.batch_size, "reading": keys.get("reading")}
        batches = eval_batches(source, {field: reader}, field=field, **how)
        return self.embeddings(weights, field, batches)

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[Any, np.ndarray]:
        raise NotImplementedError
