"""Inputs of certificates for every field, and their embeddings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from big_retrieval.exporting.parts import Exported
from big_retrieval.inference.encoder import concatenate
from big_retrieval.inference.load import TrainedModel

COUNT = 16  # inputs of a field
TEXTS = (
    "",
    "a",
    "red",
    "A small red circle left of a big blue star.",
    "Two dogs, playing!",
    "UPPER case and lower case, 3.14 and 1,000,000",
    "what is the capital of france?",
    "caf\u00e9 na\u00efve \u00fcber",
    "\u4eca\u5929\u306e\u5929\u6c17",
    "\u0441\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442",
    "\u03bf \u03c3\u03ba\u03cd\u03bb\u03bf\u03c2",
    "\u0915\u0941\u0924\u094d\u0924\u093e",
    "\U0001f600 \U0001f415",
    "antidisestablishmentarianism",
    "one two three four five six seven eight nine ten " * 4,
    "the quick brown fox jumps over the lazy dog and runs away through the long grass " * 20,
)


def inputs_of(model: Exported) -> dict[str, np.ndarray]:
    """Returns the inputs by field: texts, or images uint8 [16, S, S, 3].

    Fields of other modalities get random arrays [16, ...] under the names `field/array`.
    """
    inputs: dict[str, np.ndarray] = {}
    for encoding in model.encodings:
        for name, field in encoding.fields.items():
            if field.modality == "text":
                inputs[name] = np.array(TEXTS)
            elif field.modality == "image":
                inputs[name] = _images(field.size)
            else:
                rng = np.random.default_rng(0)
                for key, (shape, dtype) in field.shapes().items():
                    # Between 0 and 1, as features of detectors and boxes; integers are 0.
                    inputs[f"{name}/{key}"] = rng.random((COUNT, *shape)).astype(dtype)
    return inputs


def arrays_of_field(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of one field from `inputs_of`."""
    return {key: x for key, x in arrays.items() if key.partition("/")[0] == name}


def _images(size: int) -> np.ndarray:
    """Returns random images uint8 [16, size, size, 3], from single colors to noise per pixel."""
    rng = np.random.default_rng(0)
    images = []
    for index in range(COUNT):
        cells = max(1, min(size, 2 ** (index // 2)))
        coarse = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        rows = np.arange(size) * cells // size
        images.append(coarse[rows][:, rows])
    return np.stack(images)


def embeddings_of(
    model: Exported, reference: TrainedModel, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the embeddings [16, M * N] of the inputs by field; `reference` is in float32."""
    embeddings: dict[str, np.ndarray] = {}
    for encoding in model.encodings:
        by_prefix: dict[str, np.ndarray] = {}  # fields of an encoder differ only by prefix
        for name, field in encoding.fields.items():
            prefix = encoding.prompts().get(name, "")
            if prefix not in by_prefix:
                if field.modality == "text":
                    values: Any = reference.encode_texts(TEXTS, name)
                elif field.modality == "image":
                    values = reference.encode_images(list(inputs[name]), name)
                else:
                    values = _encode_arrays(reference, name, arrays_of_field(inputs, name))
                dense = values.toarray() if hasattr(values, "toarray") else values
                by_prefix[prefix] = np.asarray(dense, np.float32).reshape(COUNT, -1)
            embeddings[name] = by_prefix[prefix]
    return embeddings


def _encode_arrays(model: TrainedModel, field: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Returns embeddings of arrays that no reader prepares."""
    arrays = {key.partition("/")[2]: x for key, x in inputs.items()}
    size, batches = model.encoder.batch_size, []
    for start in range(0, COUNT, size):
        rows = np.arange(start, start + size)
        batch = {field: {name: x[rows % COUNT] for name, x in arrays.items()}}
        batch |= {"record": rows, "valid": rows < COUNT}
        batches.append(model.encoder.encode_batch(model.weights, field, batch))
    return concatenate(batches)
