"""What a certificate compares: some inputs of every field, and our embeddings of them."""

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
    """The inputs by field: texts, or images uint8 [16, S, S, 3].

    Of fields of another kind, random arrays [16, ...] by the names `field/array`.
    """
    found: dict[str, np.ndarray] = {}
    for part in model.encodings:
        for name, field in part.fields.items():
            if field.modality == "text":
                found[name] = np.array(TEXTS)
            elif field.modality == "image":
                found[name] = _images(field.size)
            else:
                rng = np.random.default_rng(0)
                for key, (shape, dtype) in field.shapes().items():
                    # Between 0 and 1, as features of detectors and boxes are; 0 of whole numbers.
                    found[f"{name}/{key}"] = rng.random((COUNT, *shape)).astype(dtype)
    return found


def of_field(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The arrays of `inputs_of` that are of one field."""
    return {key: x for key, x in arrays.items() if key.partition("/")[0] == name}


def _images(size: int) -> np.ndarray:
    """Random images uint8 [16, size, size, 3], from single colours to noise in every pixel."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(COUNT):
        cells = max(1, min(size, 2 ** (number // 2)))
        coarse = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        rows = np.arange(size) * cells // size
        images.append(coarse[rows][:, rows])
    return np.stack(images)


def embeddings_of(
    model: Exported, own: TrainedModel, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Ours of the inputs by field, [16, M * N], by our model in float32."""
    found: dict[str, np.ndarray] = {}
    for part in model.encodings:
        done: dict[str, np.ndarray] = {}  # by what stands before a text: else fields are alike
        for name, field in part.fields.items():
            prefix = part.prompts().get(name, "")
            if prefix not in done:
                if field.modality == "text":
                    values: Any = own.encode_texts(TEXTS, name)
                elif field.modality == "image":
                    values = own.encode_images(list(inputs[name]), name)
                else:
                    values = _of_arrays(own, name, of_field(inputs, name))
                dense = values.toarray() if hasattr(values, "toarray") else values
                done[prefix] = np.asarray(dense, np.float32).reshape(COUNT, -1)
            found[name] = done[prefix]
    return found


def _of_arrays(model: TrainedModel, field: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Embeddings of a field's arrays as they are."""
    arrays = {key.partition("/")[2]: x for key, x in inputs.items()}
    size, found = model.encoder.batch_size, []
    for start in range(0, COUNT, size):
        rows = np.arange(start, start + size)
        batch = {field: {name: x[rows % COUNT] for name, x in arrays.items()}}
        more = {"record": rows, "valid": rows < COUNT}
        found.append(model.encoder.encode_batch(model.weights, field, {**batch, **more}))
    return concatenate(found)
