"""What `big-retrieval evaluate` evaluates: a model or BM25, with the evaluators of a config."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.config import Config
from big_retrieval.data.build import make_eval_sources, make_readers, make_reading, make_source
from big_retrieval.evals import evaluators
from big_retrieval.evals.bm25 import make_bm25_evaluators
from big_retrieval.evals.evaluators import BoundEvaluator
from big_retrieval.evals.examples import Folder
from big_retrieval.evals.rankings import FOLDER as RANKINGS
from big_retrieval.inference.load import TrainedModel
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatedSystem:
    """A model or BM25, and its evaluators.

    Attributes:
      name: for the user.
      checkpoint: names the system in evaluation.json.
      evaluators: by the prefix of their metrics.
      weights: the parameters; None: there is no model.
      step: of the weights.
    """

    name: str
    checkpoint: str
    evaluators: Mapping[str, BoundEvaluator]
    weights: Any = None
    step: int = 0

    def run(
        self, folder: Path | None, *, rankings: bool = False, shown: Sequence[str] = ()
    ) -> dict[str, float]:
        """Runs all evaluators and returns their metrics.

        Args:
          folder: takes examples and rankings; None: neither is written.
          rankings: whether all evaluators that rank write their rankings, whatever the config says.
          shown: names of queries whose examples are written in addition, by `Retrieval`.
        """
        made = evaluators.with_rankings(self.evaluators) if rankings else self.evaluators
        log.info(f"evaluating {self.name}")
        for part, context in made.values():
            part.check_data(context)
        examples = None if folder is None else Folder(folder, self.step, Extras(), shown)
        ranked = None if folder is None else folder / RANKINGS
        found = evaluators.run(made, set(made), self.weights, examples, ranked)
        if examples is not None:
            examples.warn_of_unknown()
        return found

    def write(self, found: Mapping[str, float | str], file: Path) -> None:
        """Writes metrics, what else is found, and the name of the checkpoint to a JSON file."""
        write_bytes(file, to_json({**found, "checkpoint": self.checkpoint}))
        log.info(f"written to {file}")


def model_system(model: TrainedModel, name: str, checkpoint: str, step: int = 0) -> EvaluatedSystem:
    """A model with all evaluators of its config.

    Args:
      model: any model with a config.
      name: as `EvaluatedSystem.name`.
      checkpoint: as `EvaluatedSystem.checkpoint`.
      step: of the weights.
    """
    config = model.config
    sources = make_eval_sources(config)
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    made = evaluators.make_evaluators(config, sources, readers, model.encoder, reading)
    return EvaluatedSystem(name, checkpoint, made, model.weights, step)


def bm25_system(config: Config) -> EvaluatedSystem:
    """BM25 with the ranking evaluators of a config."""
    ranked = {name: each for name, each in config.evals.items() if each.judged}
    sources = {name: make_source(each.data) for name, each in ranked.items()}
    made, others = make_bm25_evaluators(config, sources)
    if others:
        log.info(f"skipped, as BM25 only ranks judged documents: {', '.join(others)}")
    return EvaluatedSystem("BM25", "BM25", made)
