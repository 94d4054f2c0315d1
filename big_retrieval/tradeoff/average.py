"""The quality of a plot as the average over several evaluators, such as BEIR's data sets."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.tradeoff.latency import LatencyJob, in_a_child
from big_retrieval.tradeoff.settings import settings_of
from big_retrieval.tradeoff.systems import System

log = logging.getLogger(__name__)


def weighted(config: Config, make: Callable[[str], System]) -> Iterator[tuple[float, System]]:
    """The weight and the system of each evaluator with `traffic`, made when it is asked for."""
    return ((part.traffic, make(name)) for name, part in averaged(config).items())


def averaged(config: Config) -> dict[str, Any]:
    """The evaluators that `ranking/traffic` is the average of, by name."""
    return {name: part for name, part in sorted(config.evals.items()) if part.traffic > 0}


def check_average(config: Config, name: str, metric: str) -> None:
    """Raises a UserError where no average can be shown against the times of an evaluator."""
    parts = averaged(config)
    if not parts:
        raise UserError(
            "--average is over evaluators with traffic, and config.evals has none; give some of "
            "them a weight, or add BEIR's data sets with --beir=FOLDER."
        )
    lacking = [each for each, part in parts.items() if metric not in part.search_metrics]
    if lacking:
        raise UserError(f"--average: evals.{lacking[0]} does not measure {metric}; leave it out.")
    if not config.evals[name].judged:
        raise UserError(
            f"--average is over judged documents, and evals.{name} is of the type "
            f"{config.evals[name].type!r}: name another by --eval."
        )


def average_of(systems: Iterator[tuple[float, System]], work: Path) -> list[dict[str, float]]:
    """The average quality of each setting over several evaluators, by their weights.

    Args:
      systems: weights and systems with the same gates; each is made, searched and forgotten.
      work: takes an index at a time.

    Returns:
      For each setting, in the order of `settings_of`, the metrics that all evaluators have.
    """
    found: list[tuple[float, list[dict[str, float]]]] = []
    for weight, system in systems:
        folder = work / "averaged"
        folder.mkdir()
        settings = settings_of("", system, folder, "index")
        jobs = [(each.queries, each.index) for each in settings]
        result = in_a_child(LatencyJob(jobs, [], system.task.depth, [], 1), folder)
        pairs = zip(settings, result.found, strict=True)
        found.append((weight, [setting.scorer(*each) for setting, each in pairs]))
        shutil.rmtree(folder)
        log.info(f"{system.task.title}: searched {len(settings)} settings")
    total = sum(weight for weight, _ in found)
    out = []
    for of_setting in zip(*(qualities for _, qualities in found), strict=True):
        names = [name for name in of_setting[0] if all(name in each for each in of_setting)]
        weighted = list(zip((weight for weight, _ in found), of_setting, strict=True))
        out.append({n: sum(weight * each[n] for weight, each in weighted) / total for n in names})
    return out
