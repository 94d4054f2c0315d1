"""From the configuration's `evals` to objects that turn weights into numbers."""

import dataclasses
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from big_retrieval.config import Config, Field
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.topologies import Topology, topology_part
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals import examples as example_files
from big_retrieval.evals.encoding import encode_source
from big_retrieval.evals.rankings import name_of
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.runtime import messages
from big_retrieval.runtime.extras import Extras

TRAFFIC = "ranking/traffic"  # prefix of the averages over evaluators by their share of the traffic
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EvaluatorContext:
    """What an evaluator's part builds from.

    Attributes:
      name: of the evaluator in `config.evals`.
      source: its records; None: it has no `data`.
      fields: field name -> its configuration.
      readers: field name -> how it is read.
      topology: scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
      duplicates: whether records that share a text or an image are right answers of each other.
    """

    name: str
    source: RecordSource | None
    fields: Mapping[str, Field]
    readers: Mapping[str, FieldReader]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None
    duplicates: bool = False

    def encode(self, weights: Any, field: str) -> tuple[Embeddings, np.ndarray]:
        """A field of all records: embeddings [n, M, N] or CSR [n, V], and their records [n].

        Args:
          weights: the parameters, as `run` is given them.
          field: name in `config.fields`.
        """
        assert self.source is not None, f"config.evals.{self.name} has no data"
        reader = self.readers[field]
        return encode_source(self.encoder, weights, self.source, field, reader, self.reading)


class Runnable(Protocol):
    """What `config.Evaluator.build` returns, and the loop calls."""

    def check(self) -> None:
        """Raises a UserError for data that do not fit; called before the first step."""
        ...

    def run(self, weights: Any, show: example_files.Show | None = None) -> dict[str, float]:
        """Numbers by name, from the parameters alone; `show` takes examples of what was found."""
        ...


def make_evaluators(
    config: Config,
    sources: Mapping[str, RecordSource],
    readers: Mapping[str, FieldReader],
    encoder: Encoder,
    reading: Reading | None = None,
) -> dict[str, Runnable]:
    """The evaluators by the prefix of their metrics, such as `retrieval/test`.

    Args:
      config: of the run.
      sources: evaluator name -> its records.
      readers: field name -> how it is read.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """
    if reading is not None:  # starting worker processes takes longer than most evaluations
        threads = max(reading.threads, reading.workers)
        reading = dataclasses.replace(reading, threads=threads, workers=0)
    built, folders = {}, dict[str, str]()
    for name, part in sorted(config.evals.items()):
        other = folders.setdefault(name_of(part.prefix(name)), name)
        if other != name:
            raise UserError(
                f"config.evals.{name} and config.evals.{other} write to one folder of rankings and "
                "examples, where blanks and slashes become '-'. Rename one of them."
            )
        context = EvaluatorContext(
            name=name,
            source=sources.get(name),
            fields=dict(config.encoded),
            readers=readers,
            topology=topology_part(config.topology_of(*part.reads().values())),
            encoder=encoder,
            reading=reading,
            duplicates=config.labels.duplicates,
        )
        runnable = part.build(context)
        if not (dataclasses.is_dataclass(runnable) and part_of(runnable) is part):
            runnable = _WithPart(part, runnable)
        built[part.prefix(name)] = runnable
    return built


@dataclasses.dataclass(frozen=True)
class _WithPart:
    """A user's evaluator that does not keep its part, and the part."""

    config: Evaluator
    runnable: Runnable

    def check(self) -> None:
        self.runnable.check()

    def run(self, *args: Any, **more: Any) -> dict[str, float]:
        return self.runnable.run(*args, **more)


def due(config: Config, step: int, total_steps: int, common: bool) -> set[str]:
    """Prefixes of the evaluators to run after a step.

    After the last step these are all; or, where the numbers of the end are those of the best
    checkpoint, those without which the last step would not be compared with the others.

    Args:
      config: of the run.
      step: finished steps.
      total_steps: of the run.
      common: whether those that have no `every` of their own are due.
    """
    found = {
        part.prefix(name)
        for name, part in config.evals.items()
        if (common if part.every is None else part.every and step % part.every == 0)
    }
    if step < total_steps:
        return found
    if config.final_weights == "best":
        return found | _needed_for_best(config)
    return {part.prefix(name) for name, part in config.evals.items()}


def measures_best(config: Config, names: set[str]) -> bool:
    """Whether these evaluators give `config.best_metric`."""
    needed = _needed_for_best(config)
    return bool(needed) and needed <= names


def _needed_for_best(config: Config) -> set[str]:
    """Prefixes of the evaluators that `config.best_metric` is computed from."""
    parts = {part.prefix(name): part for name, part in config.evals.items()}
    if config.best_metric.startswith(f"{TRAFFIC}/"):
        return {prefix for prefix, part in parts.items() if part.traffic > 0}
    return {prefix for prefix in parts if config.best_metric.startswith(f"{prefix}/")}


def run(
    evaluators: Mapping[str, Runnable],
    names: set[str],
    weights: Any,
    examples: example_files.Folder | None = None,
    rankings: Path | None = None,
    extras: Extras | None = None,
    config: Config | None = None,
) -> dict[str, float]:
    """Runs some evaluators.

    Args:
      evaluators: by prefix.
      names: the prefixes to run.
      weights: the parameters.
      examples: where examples of what was found go; None: nowhere.
      rankings: the folder where those that are to write their rankings do so; None: nowhere.
      extras: says that rankings cannot be written; None: that is an error.
      config: whose evaluators they are, to compare the names of metrics with; None: they are not.

    Returns:
      Metrics such as `retrieval/test/image_to_text/R@1`.

    Raises:
      UserError: a metric is no number, or is not among `metric_names`; there is no `best_metric`.
    """
    out = {}
    for prefix in sorted(names):
        start = time.monotonic()
        show = None if examples is None else examples.show(prefix)
        evaluator: Any = evaluators[prefix]
        more: dict[str, Any] = {}
        if rankings is not None and part_of(evaluator).rankings:
            more |= {"rankings": rankings / name_of(prefix), "extras": extras}
        with messages.about(prefix):
            found = evaluator.run(weights, show, **more)
            log.info(f"done in {time.monotonic() - start:.1f} s")
        if config is not None:
            _compare_names(prefix, found, config)
        out |= {f"{prefix}/{name}": _number(value, prefix, name) for name, value in found.items()}
    return out | traffic(evaluators, out)


def _compare_names(prefix: str, found: Collection[str], config: Config) -> None:
    """Raises a UserError where an evaluator returns other metrics than its part says it may."""
    parts = {part.prefix(name): part for name, part in config.evals.items()}
    foretold = parts[prefix].metric_names(config)
    unknown = [] if foretold is None else [name for name in found if name not in foretold]
    if unknown:
        raise UserError(
            f"the evaluator {prefix} returns {', '.join(unknown)}, which its metric_names does not "
            f"list (it has: {', '.join(foretold or ())}); let both give the same names."
        )
    best = config.best_metric.removeprefix(f"{prefix}/")
    if best != config.best_metric and best not in found:
        raise UserError(
            f"config.best_metric is {config.best_metric!r}, but the evaluator {prefix} returns no "
            f"{best!r}; it returns: {', '.join(found) or 'nothing'}."
        )


def _number(value: Any, prefix: str, name: str) -> float:
    """A metric as a Python number, which JSON can hold; NumPy and jax have their own.

    Raises:
      UserError: it is something else.
    """
    if isinstance(value, int | float):
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise UserError(
        f"the evaluator {prefix} gives {name!r} as {type(value).__name__}; return one number, such "
        "as float(value), for each metric."
    )


def with_rankings(evaluators: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluators, those that can made to write their rankings, whatever the config says.

    Raises:
      UserError: none of them can.
    """
    out = {
        prefix: dataclasses.replace(each, config=dataclasses.replace(each.config, rankings=True))
        if "rankings" in getattr(part_of(each), "__dataclass_fields__", ())
        else each
        for prefix, each in evaluators.items()
    }
    if not any(part_of(each).rankings for each in out.values()):
        names = ", ".join(evaluators) or "none at all"
        raise UserError(
            f"--rankings: none of the evaluators ({names}) has values by query; leave it out."
        )
    return out


def part_of(evaluator: Any) -> Any:
    """The part of an evaluator of `make_evaluators`, which all keep it as their `config`."""
    part = getattr(evaluator, "config", None)
    return part if isinstance(part, Evaluator) else Evaluator


def traffic(evaluators: Mapping[str, Any], found: Mapping[str, float]) -> dict[str, float]:
    """The averages over ranking evaluators by their share of the traffic.

    Args:
      evaluators: by prefix, such as `ranking/in_domain`; those without a share do not count.
      found: the metrics of the evaluators that have run.

    Returns:
      `ranking/traffic/...`, for metrics that all evaluators with a share have; nothing where one
      of them has not run.
    """
    weights = {f"{prefix}/": part_of(each).traffic for prefix, each in evaluators.items()}
    weights = {prefix: weight for prefix, weight in weights.items() if weight > 0}
    first, out = next(iter(weights), ""), {}
    for name in found if weights else ():
        metric = name.removeprefix(first)
        if name.startswith(first) and all(prefix + metric in found for prefix in weights):
            value = sum(weight * found[prefix + metric] for prefix, weight in weights.items())
            out[f"{TRAFFIC}/{metric}"] = value / sum(weights.values())
    return out
