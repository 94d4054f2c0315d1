"""Quality against latency of one or several models: encode once, index, search, score.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
6.3, figure 5 and appendix G: one query at a time on one thread, over inverted indexes, for gates
of different widths, bags of words without a network, and dense models and BM25 beside them.
"""

import dataclasses
import logging
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from big_retrieval.inference.saved import read_config, read_from
from big_retrieval.io.manifest import run_folder
from big_retrieval.runtime import messages
from big_retrieval.runtime.machine import processor
from big_retrieval.tradeoff.average import average_of, check_average, weighted
from big_retrieval.tradeoff.gates import gates_of, lexical
from big_retrieval.tradeoff.latency import LatencyJob, in_a_child
from big_retrieval.tradeoff.settings import BATCH, Setting, settings_of
from big_retrieval.tradeoff.systems import (
    SearchTask,
    System,
    bm25_system,
    check_bm25,
    choose,
    model_system,
)

AVERAGE = "the average"  # in titles, instead of an evaluator
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TradeoffOptions:
    """The flags of `big-retrieval tradeoff`.

    Attributes:
      checkpoints: run or checkpoint folders of the models.
      evaluator: a name in `config.evals`; "": the only evaluator.
      queries: gates of queries; (): default gates.
      documents: gates of documents.
      metric: what the plot shows; "": the evaluator's first.
      limit: queries that are timed at most.
      rounds: how often each query is timed.
      bm25: measure BM25, too.
      average: quality is the average over all evaluators with `traffic`, by their weights.
      change: what becomes of the config of a run, such as evaluators that are added.
    """

    checkpoints: Sequence[str]
    evaluator: str = ""
    queries: Sequence[str] = ()
    documents: Sequence[str] = ()
    metric: str = ""
    limit: int = 1000
    rounds: int = 5
    bm25: bool = False
    average: bool = False
    change: Callable[[Config], Config] = lambda config: config


def check(options: TradeoffOptions) -> list[str]:
    """The evaluator of each model; checks the flags before anything is encoded.

    Raises:
      UserError: a checkpoint cannot be used; there is no such evaluator or metric; gates are asked
        for and no model is lexical.
    """
    if not options.checkpoints:
        raise UserError("--run is missing: a run or checkpoint folder, or several of them.")
    found, sparse = [], False
    for checkpoint in options.checkpoints:
        config = options.change(read_from(checkpoint, read_config))
        name = choose(config, options.evaluator)
        metrics = config.evals[name].search_metrics
        if options.average:
            check_average(config, name, options.metric or metrics[0])
        if options.metric and options.metric not in metrics:
            raise UserError(
                f"--metric is {options.metric!r}, which evals.{name} of {checkpoint} does not "
                f"measure; it has: {', '.join(metrics)}."
            )
        gates_of(config, name, options.queries, options.documents)
        if options.bm25:
            check_bm25(config, name)
        sparse = sparse or lexical(config, name)
        found.append(name)
    if (options.queries or options.documents) and not sparse:
        flag = "--queries" if options.queries else "--documents"
        raise UserError(
            f"{flag} names gates of lexical models, and {options.checkpoints[0]} has dense fields; "
            "leave it out."
        )
    return found


def measure(
    options: TradeoffOptions,
    evaluators: Sequence[str],
    work: Path,
) -> dict[str, Any]:
    """Measures, and returns the content of tradeoff.json.

    Args:
      options: of the command.
      evaluators: from `check`.
      work: an empty folder, for indexes.

    Raises:
      UserError: models, evaluators or gates that do not go together.
    """
    names = named(options.checkpoints)
    systems = _systems(options, evaluators)
    averages: list[dict[str, float]] = []  # of the settings, in their order
    names += ["BM25"] if options.bm25 else []
    settings: list[Setting] = []
    encodings: list[Any] = []
    task: SearchTask | None = None
    for name in names:
        with messages.about(name):
            checkpoint, system, others = next(systems)
            task = task or system.task
            if system.task != task:
                raise UserError(
                    f"{name} is measured by other queries, documents or metrics than {names[0]} "
                    f"({system.task} and {task}), so one plot cannot hold both."
                )
            settings += settings_of(name, system, work, f"index-{len(encodings)}")
            encodings.append((checkpoint, system.samples))
            log.info(f"indexed {task.documents:,} documents")
            averages += average_of(others, work) if options.average else []
    assert task is not None  # there is a model
    timed = evenly_spaced(task.queries, options.limit).tolist()
    jobs = [(each.queries, each.index) for each in settings]
    job = LatencyJob(jobs, encodings, task.depth, timed, options.rounds)
    result = in_a_child(job, work)
    models = {
        name: {f"{part}_ms": 1000 * mean for part, mean in each.items()}
        for name, each in zip(names, result.encodings, strict=True)
    }
    qualities = averages or [
        each.scorer(*found) for each, found in zip(settings, result.found, strict=True)
    ]
    points = zip(settings, qualities, 1000 * result.seconds, strict=True)
    return {
        "evaluator": f"{AVERAGE}, timed on {task.title}" if options.average else task.title,
        "metric": options.metric or task.metrics[0],
        "metrics": list(qualities[0]),
        "queries": task.queries,
        "timed": len(timed),
        "rounds": options.rounds,
        "documents": task.documents,
        "depth": task.depth,
        "machine": machine(),
        "models": models,
        "points": [_point(setting, quality, taken, models) for setting, quality, taken in points],
    }


def _systems(
    options: TradeoffOptions, evaluators: Sequence[str]
) -> Iterator[tuple[str, System, Iterator[tuple[float, System]]]]:
    """Yields the checkpoint and the system of each model, then "" and the system of BM25.

    The third is the same model or BM25 with the evaluators that an average is over, made one after
    the other, each with its weight.
    """
    for checkpoint, evaluator in zip(options.checkpoints, evaluators, strict=True):
        found = load(checkpoint, batch_size=BATCH)
        model = dataclasses.replace(found, config=options.change(found.config))
        gates = gates_of(model.config, evaluator, options.queries, options.documents)
        with_model = partial(model_system, model, gates=gates)
        others = weighted(model.config, with_model)
        yield str(model.folder), with_model(evaluator), others
    if options.bm25:
        config = options.change(read_from(options.checkpoints[0], read_config))
        with_bm25 = partial(bm25_system, config)
        yield "", with_bm25(evaluators[0]), weighted(config, with_bm25)


def named(checkpoints: Sequence[str]) -> list[str]:
    """Names of the models: of their run folders, with the parent's name if two are equal.

    Raises:
      UserError: a folder is given twice.
    """
    paths = [run_folder(Path(each).resolve()) for each in checkpoints]
    count = Counter(path.name for path in paths)
    names = [f"{p.parent.name}/{p.name}" if count[p.name] > 1 else p.name for p in paths]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"--run names {repeated} twice; give each model once.")
    return names


def _point(
    setting: Setting,
    quality: Mapping[str, float],
    taken: np.ndarray,
    models: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The numbers of a setting: quality, latency (milliseconds, [T]), size."""
    search = {"mean": float(taken.mean())}
    search |= {f"p{percent}": float(np.percentile(taken, percent)) for percent in (50, 95)}
    encoding = models[setting.known["model"]][setting.encoding]
    return {
        **setting.known, "metrics": dict(quality), "search_ms": search,
        "encoding_ms": encoding, "latency_ms": search["mean"] + encoding,
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import jax

    return {
        "cpu": processor(), "cores": os.cpu_count(), "threads": 1,
        "device": jax.devices()[0].device_kind, "platform": platform.platform(),
        "python": platform.python_version(), "numpy": np.__version__, "jax": jax.__version__,
    }  # fmt: skip
