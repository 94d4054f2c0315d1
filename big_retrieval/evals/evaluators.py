"""Evaluators with their data and model: built once, run on the parameters of a step."""

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from big_retrieval.config import Config
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.topologies import Topology, topology_part
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.rankings import name_of
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.runtime import messages
from big_retrieval.runtime.extras import Extras

TRAFFIC = "ranking/traffic"  # prefix of the averages over evaluators by their share of the traffic
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EvaluatorContext:
    """Data, model and outputs of one evaluator.

    Attributes:
      name: key in `config.evals`.
      source: a `RecordSource`; None if the evaluator has no `data`.
      readers: reader by field name; `readers[name].field` has the keys of the field.
      reading: threads that read records, and the count of damaged records.
      duplicates: True if records that share a text or an image are positives of each other.
      show: writes the report's examples from results or a mapping of JSON values; every process
        calls it at most once. None writes no examples.
      rankings: folder for the values of each query; None writes none.
      extras: turns an output that cannot be written into a warning; None makes it an error.
      computed: values of methods with `config.once`.
    """

    name: str
    source: Any
    readers: Mapping[str, FieldReader]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None
    duplicates: bool = False
    show: Callable[[Any], None] | None = None
    rankings: Path | None = None
    extras: Extras | None = None
    computed: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        """Path of the evaluator's keys, such as `config.evals.test`."""
        return f"config.evals.{self.name}"

    def try_fields(self, *names: str, source: RecordSource | None = None) -> None:
        """Raises a UserError if fields do not fit the first record of the data or of `source`."""
        records = self.source if source is None else source
        try_record(records, {name: self.readers[name] for name in names})

    def encode(self, weights: Any, field: str) -> tuple[Embeddings, np.ndarray]:
        """Encodes a field of all records of the data.

        Returns:
          Embeddings [n, M, N] or CSR [n, V], and their record indices [n].
        """
        return self.source_encoder(weights).encode(self.source, field, self.readers[field])

    def source_encoder(self, weights: Any) -> SourceEncoder:
        """Returns the encoder of sources with these weights."""
        return SourceEncoder(self.encoder, weights, self.reading)


# Writes examples for the report from prefix, context and results of an evaluator.
WriteExamples = Callable[[str, EvaluatorContext, Any], None]


class BoundEvaluator(NamedTuple):
    """An evaluator of a config with its data and model."""

    part: Evaluator
    context: EvaluatorContext


def make_evaluators(
    config: Config,
    sources: Mapping[str, RecordSource],
    readers: Mapping[str, FieldReader],
    encoder: Encoder,
    reading: Reading | None = None,
) -> dict[str, BoundEvaluator]:
    """Builds the evaluators of a config, by the prefix of their metrics such as `retrieval/test`.

    `sources` maps evaluator names to sources; an evaluator without `data` has no source.
    """
    if reading is not None:  # starting worker processes takes longer than most evaluations
        threads = max(reading.threads, reading.workers)
        reading = dataclasses.replace(reading, threads=threads, workers=0)
    bound, folders = {}, dict[str, str]()
    for name, evaluator in sorted(config.evals.items()):
        other = folders.setdefault(name_of(evaluator.prefix(name)), name)
        if other != name:
            raise UserError(
                f"config.evals.{name} and config.evals.{other} write to the same folder, whose "
                "name has '-' for blanks and slashes. Rename one of them."
            )
        context = EvaluatorContext(
            name=name,
            source=sources.get(name),
            readers=readers,
            topology=topology_part(config.topology_of(*evaluator.reads().values())),
            encoder=encoder,
            reading=reading,
            duplicates=config.labels.duplicates,
        )
        bound[evaluator.prefix(name)] = BoundEvaluator(evaluator, context)
    return bound


def due(config: Config, step: int, total_steps: int, common: bool) -> set[str]:
    """Returns the prefixes of the evaluators to run after a step.

    After the last step, all evaluators run. If the run ends with its best checkpoint, the last step
    needs only the evaluators of `config.best_metric`. `common` is True if the evaluators with
    `every` None are due.
    """
    prefixes = {
        evaluator.prefix(name)
        for name, evaluator in config.evals.items()
        if (common if evaluator.every is None else evaluator.every and step % evaluator.every == 0)
    }
    if step < total_steps:
        return prefixes
    if config.final_weights == "best":
        return prefixes | _needed_for_best(config)
    return {evaluator.prefix(name) for name, evaluator in config.evals.items()}


def measures_best(config: Config, names: set[str]) -> bool:
    """Returns True if these evaluators compute `config.best_metric`."""
    needed = _needed_for_best(config)
    return bool(needed) and needed <= names


def _needed_for_best(config: Config) -> set[str]:
    """Returns the prefixes of the evaluators that `config.best_metric` is computed from."""
    by_prefix = {evaluator.prefix(name): evaluator for name, evaluator in config.evals.items()}
    if config.best_metric.startswith(f"{TRAFFIC}/"):
        return {prefix for prefix, evaluator in by_prefix.items() if evaluator.traffic > 0}
    return {prefix for prefix in by_prefix if config.best_metric.startswith(f"{prefix}/")}


def run(
    evaluators: Mapping[str, BoundEvaluator],
    names: Collection[str],
    weights: Any,
    examples: WriteExamples | None = None,
    rankings: Path | None = None,
    extras: Extras | None = None,
    config: Config | None = None,
) -> dict[str, float]:
    """Runs evaluators, and returns metrics such as `retrieval/test/image_to_text/R@1`.

    Args:
      names: prefixes of the evaluators to run.
      examples: writes examples for the report; None writes none.
      rankings: folder for the values of each query; None writes none.
      extras: turns an output that cannot be written into a warning; None makes it an error.
      config: raises a UserError if the metrics differ from the evaluators' `metric_names`, or if
        `best_metric` is missing; None checks nothing.
    """
    out = {}
    for prefix in sorted(names):
        start = time.monotonic()
        evaluator, context = evaluators[prefix]
        folder = rankings / name_of(prefix) if rankings is not None and evaluator.rankings else None
        show = None if examples is None else partial(examples, prefix, context)
        context = dataclasses.replace(context, show=show, rankings=folder, extras=extras)
        with messages.about(prefix):
            metrics = evaluator.run(context, weights)
            log.info(f"done in {time.monotonic() - start:.1f} s")
        if config is not None:
            _compare_names(prefix, metrics, evaluator.metric_names(config), config.best_metric)
        out |= {f"{prefix}/{name}": _number(value, prefix, name) for name, value in metrics.items()}
    return out | traffic(evaluators, out)


def _compare_names(
    prefix: str, names: Collection[str], listed: Collection[str] | None, best_metric: str
) -> None:
    """Raises a UserError if an evaluator returns other metrics than its `metric_names` lists."""
    unknown = [] if listed is None else [name for name in names if name not in listed]
    if unknown:
        raise UserError(
            f"the evaluator {prefix} returns {', '.join(unknown)}, which its metric_names does not "
            f"list (it has: {', '.join(listed or ())}). Return the same names from both."
        )
    best = best_metric.removeprefix(f"{prefix}/")
    if best != best_metric and best not in names:
        raise UserError(
            f"config.best_metric is {best_metric!r}, but the evaluator {prefix} returns only: "
            f"{', '.join(names) or 'nothing'}."
        )


def _number(value: Any, prefix: str, name: str) -> float:
    """Converts a metric to a Python number for JSON; raises a UserError if it is something else."""
    if isinstance(value, int | float):
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise UserError(
        f"the evaluator {prefix} returns {name!r} as {type(value).__name__}. Return one number, "
        "such as float(value), for each metric."
    )


def with_rankings(evaluators: Mapping[str, BoundEvaluator]) -> dict[str, BoundEvaluator]:
    """Sets `rankings` of all evaluators that have this key; raises a UserError if none has it."""
    out = dict(evaluators)
    for prefix, (evaluator, context) in evaluators.items():
        if "rankings" in getattr(evaluator, "__dataclass_fields__", ()):
            writing = dataclasses.replace(evaluator, rankings=True)  # type: ignore
            out[prefix] = BoundEvaluator(writing, context)
    if not any(evaluator.rankings for evaluator, _ in out.values()):
        names = ", ".join(evaluators) or "none"
        raise UserError(
            f"--rankings: no evaluator has values by query (evaluators: {names}). Remove the flag."
        )
    return out


def traffic(
    evaluators: Mapping[str, BoundEvaluator], metrics: Mapping[str, float]
) -> dict[str, float]:
    """Averages metrics over the evaluators with `traffic` above 0, weighted by it.

    Returns:
      `ranking/traffic/...`, for metrics that all these evaluators have; empty if one of these
      evaluators has not run.
    """
    weights = {f"{prefix}/": evaluator.traffic for prefix, (evaluator, _) in evaluators.items()}
    weights = {prefix: weight for prefix, weight in weights.items() if weight > 0}
    first, out = next(iter(weights), ""), {}
    for path in metrics if weights else ():
        name = path.removeprefix(first)
        if path.startswith(first) and all(prefix + name in metrics for prefix in weights):
            value = sum(weight * metrics[prefix + name] for prefix, weight in weights.items())
            out[f"{TRAFFIC}/{name}"] = value / sum(weights.values())
    return out
