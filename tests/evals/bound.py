"""Evaluators with given data and embeddings."""

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from big_retrieval import parallel
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.evals.evaluators import BoundEvaluator, EvaluatorContext
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report.example_files.folder import FOLDER, ExampleFolder
from big_retrieval.runtime.extras import Extras
from tests.helpers import tiny

TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])


class PresetEncoder(Encoder):
    """An encoder with a table of embeddings per field: a row per image or text, in their order.

    `encoded` has the number of rows of each call, by field.
    """

    def __init__(self, devices: Any = 1, **tables: Any) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        self.tables, self.encoded = tables, dict[str, list[int]]()

    def encode(
        self, weights: Any, field: str, source: Any, reader: Any, **keys: Any
    ) -> tuple[Any, np.ndarray]:
        options: Any = {"batch_size": self.batch_size, "reading": keys.get("reading")}
        batches = [*eval_batches(source, {field: reader}, field=field, **options)]
        records = np.concatenate([batch["record"][batch["valid"]] for batch in batches])
        self.encoded.setdefault(field, []).append(len(records))
        return self.take_rows(field, records, batches), records

    def take_rows(self, field: str, records: np.ndarray, batches: list[Any]) -> Any:
        del batches
        return self.tables[field][: len(records)]

    def gradcam_obstacle(self, text: str, image: str) -> str:
        return "there is no model"


class Bound(BoundEvaluator):
    """An evaluator as the training loop calls it, without checks of metric names."""

    def check(self) -> None:
        self.part.check_data(self.context)

    def run(self, weights: Any, **outputs: Any) -> dict[str, float]:
        return self.part.run(dataclasses.replace(self.context, **outputs), weights)

    def examples(
        self, weights: Any, names: Sequence[str] = ()
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns metrics, and the content of the examples file."""
        with tempfile.TemporaryDirectory() as folder:
            write = ExampleFolder(Path(folder), 0, Extras(), names)
            metrics = self.run(weights, show=partial(write, "x/test", self.context))
            return metrics, json.loads((Path(folder) / FOLDER / "x-test.json").read_text())


def bound(part: Any, *args: Any, name: str = "<name>", **keys: Any) -> Bound:
    """Binds an evaluator to its source, readers, topology and encoder."""
    return Bound(part, EvaluatorContext(name, *args, **keys))
