"""Systems of `big-retrieval evaluate`: a model or BM25, with the evaluators of a config."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from big_retrieval.config import Config
from big_retrieval.data.build import (
    eval_fingerprints,
    make_eval_sources,
    make_readers,
    make_reading,
    make_source,
    warn_of_other_evals,
)
from big_retrieval.evals import evaluators
from big_retrieval.evals.bm25 import make_bm25_evaluators
from big_retrieval.evals.evaluators import BoundEvaluator, WriteExamples
from big_retrieval.evals.rankings import FOLDER as RANKINGS
from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatedSystem:
    """A model or BM25 (without weights), and its evaluators by prefix."""

    name: str  # in messages
    checkpoint: str  # name in evaluation.json
    evaluators: Mapping[str, BoundEvaluator]
    weights: Any = None
    step: int = 0

    def run(
        self,
        folder: Path | None = None,
        examples: WriteExamples | None = None,
        *,
        rankings: bool = False,
    ) -> dict[str, float]:
        """Runs all evaluators and returns their metrics.

        Writes rankings to `folder` (None for no rankings): of evaluators with their key `rankings`,
        or of all evaluators that can do so if `rankings` is True.
        """
        bound = evaluators.with_rankings(self.evaluators) if rankings else self.evaluators
        log.info(f"evaluating {self.name}")
        for evaluator, context in bound.values():
            evaluator.check_data(context)
        ranking_folder = None if folder is None else folder / RANKINGS
        return evaluators.run(bound, set(bound), self.weights, examples, ranking_folder)


def model_system(
    model: TrainedModel,
    name: str,
    checkpoint: str,
    step: int = 0,
    fingerprints: Mapping[str, str] = MappingProxyType({}),
) -> EvaluatedSystem:
    """Builds a system from a model and all evaluators of its config.

    Args:
      fingerprints: fingerprints of the evaluators' data at training, by config key; logs a warning
        if the data differ.
    """
    config = model.config
    sources = make_eval_sources(config)
    if fingerprints:
        warn_of_other_evals(fingerprints, eval_fingerprints(sources))
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    bound = evaluators.make_evaluators(config, sources, readers, model.encoder, reading)
    return EvaluatedSystem(name, checkpoint, bound, model.weights, step)


def bm25_system(config: Config) -> EvaluatedSystem:
    """Builds a system from BM25 and the ranking evaluators of a config."""
    sources = {name: make_source(x.data) for name, x in config.evals.items() if x.judged}
    bound, skipped = make_bm25_evaluators(config, sources)
    if skipped:
        log.info(f"skipped, as BM25 only ranks judged documents: {', '.join(skipped)}")
    return EvaluatedSystem("BM25", "BM25", bound)
