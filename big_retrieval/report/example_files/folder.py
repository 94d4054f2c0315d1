"""Folder examples/ of a run: a JSON file of each evaluator, which the report shows."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from big_retrieval.errors import UserError
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.ranking import RankingResult
from big_retrieval.evals.rankings import name_of
from big_retrieval.evals.retrieval import RetrievalResult
from big_retrieval.evals.zeroshot import ZeroShotResult
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.report.example_files.ranking import ranking_content
from big_retrieval.report.example_files.retrieval import retrieval_content, select_queries
from big_retrieval.report.example_files.zeroshot import zeroshot_content
from big_retrieval.runtime.extras import Extras

FOLDER = "examples"
log = logging.getLogger(__name__)


class ExampleFolder:
    """Folder of examples of a run; the first process writes it.

    Args:
      step: step of the evaluated weights.
      extras: turns a file that cannot be written into a warning.
      names: queries to show in addition, named as in rankings/*/queries.csv.
    """

    def __init__(self, workdir: Path, step: int, extras: Extras, names: Sequence[str] = ()) -> None:
        self._root, self._step, self._extras, self._names = workdir / FOLDER, step, extras, names
        self._unknown = set(names)

    def __call__(self, evaluator: str, context: EvaluatorContext, result: Any) -> None:
        """Writes the examples of an evaluator such as `retrieval/test`; called on every process."""
        directions = []
        if isinstance(result, RetrievalResult):
            directions = select_queries(result, self._names, context)
            for first, *_ in result.directions if self._names else ():
                self._unknown.difference_update(first.names())
        if jax.process_index() != 0:
            return
        name = f"{name_of(evaluator)}.json"
        with self._extras(f"{FOLDER}/{name}"):
            match result:
                case RetrievalResult():
                    content: Mapping[str, Any] = retrieval_content(result, directions, context)
                case RankingResult():
                    content = ranking_content(result, context)
                case ZeroShotResult():
                    content = zeroshot_content(result, context)
                case Mapping():
                    content = result
                case _:
                    raise UserError(
                        f"{evaluator} shows a {type(result).__name__}. Pass a mapping of JSON "
                        "values to `context.show`."
                    )
            self._root.mkdir(parents=True, exist_ok=True)
            head = {"evaluator": evaluator, "type": evaluator.partition("/")[0], "step": self._step}
            write_bytes(self._root / name, to_json({**head, **content}))

    def warn_of_unknown(self) -> None:
        """Warns of names that no evaluator has; called after all evaluators."""
        if unknown := [name for name in self._names if name in self._unknown]:
            log.warning(
                f"--show: no retrieval evaluator has {len(unknown)} of {len(self._names)} names, "
                f"such as {unknown[0]!r}; --rankings writes the names to queries.csv"
            )
