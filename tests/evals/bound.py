"""Evaluators with given data and embeddings."""

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from big_retrieval.evals.evaluators import BoundEvaluator, EvaluatorContext
from big_retrieval.report.example_files.folder import FOLDER, ExampleFolder
from big_retrieval.runtime.extras import Extras


class Bound(BoundEvaluator):
    """As the training loop calls it, without checks of the names of metrics."""

    def check(self) -> None:
        self.part.check_data(self.context)

    def run(self, weights: Any, **outputs: Any) -> dict[str, float]:
        return self.part.run(dataclasses.replace(self.context, **outputs), weights)

    def examples(
        self, weights: Any, names: Sequence[str] = ()
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Its numbers, and the file of its examples."""
        with tempfile.TemporaryDirectory() as folder:
            write = ExampleFolder(Path(folder), 0, Extras(), names)
            found = self.run(weights, show=partial(write, "x/test", self.context))
            return found, json.loads((Path(folder) / FOLDER / "x-test.json").read_text())


def bound(part: Any, *args: Any, name: str = "<name>", **keys: Any) -> Bound:
    """An evaluator with its source, readers, topology and encoder."""
    return Bound(part, EvaluatorContext(name, *args, **keys))
