"""From the configuration's `evals` to objects that turn weights into numbers."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from big_retrieval import similarity
from big_retrieval.config import Config, Ranking, Retrieval
from big_retrieval.data.batches import FieldSpec
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import Source
from big_retrieval.encoding import Encoder
from big_retrieval.evals import examples as example_files
from big_retrieval.evals.ranking import RankingEvaluator, traffic
from big_retrieval.evals.rankings import name_of
from big_retrieval.evals.retrieval import RetrievalEvaluator
from big_retrieval.evals.zeroshot import ZeroShotEvaluator
from big_retrieval.runtime.extras import Extras

Say = Callable[[str], None]


class Evaluator(Protocol):
    """What the loop calls; a new kind is a module of this room and a line in `make_evaluators`."""

    def check(self) -> None:
        """Raises a UserError for data that do not fit; called before the first step."""
        ...

    def run(
        self, weights: Any, say: Say = ..., show: example_files.Show | None = None
    ) -> dict[str, float]:
        """Numbers by name, from the parameters alone; `show` takes examples of what was found."""
        ...


def make_evaluators(
    config: Config,
    sources: Mapping[str, Source],
    specs: Mapping[str, FieldSpec],
    encoder: Encoder,
    reading: Reading | None = None,
) -> dict[str, Evaluator]:
    """The evaluators by the prefix of their metrics, such as `retrieval/test`.

    Args:
      config: of the run.
      sources: evaluator name -> its records.
      specs: field name -> how it is read.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """
    if reading is not None:  # starting worker processes takes longer than most evaluations
        threads = max(reading.threads, reading.workers)
        reading = dataclasses.replace(reading, threads=threads, workers=0)
    topology = similarity.topology(config.topology)
    out: dict[str, Evaluator] = {}
    for name, ev in sorted(config.evals.items()):
        parts = (sources[name], dict(specs), topology, encoder, reading)
        if isinstance(ev, Retrieval):
            out[f"{ev.type}/{name}"] = RetrievalEvaluator(ev, *parts)
        elif isinstance(ev, Ranking):
            judged: Any = sources[name]  # checks.evals saw that it is
            rest = (dict(config.fields), *parts[1:])
            out[f"{ev.type}/{name}"] = RankingEvaluator(ev, judged, *rest)
        else:
            out[f"{ev.type}/{name}"] = ZeroShotEvaluator(ev, *parts, name=name)
    return out


def due(config: Config, step: int, total_steps: int) -> set[str]:
    """Prefixes of the evaluators to run after this step; all of them at the end."""
    found = set()
    for name, ev in config.evals.items():
        every = config.eval_every if ev.every is None else ev.every
        if step == total_steps or (every and step % every == 0):
            found.add(f"{ev.type}/{name}")
    return found


def measures(names: set[str], metric: str) -> bool:
    """Whether one of these evaluators gives this metric."""
    return bool(metric) and any(metric.startswith(f"{name}/") for name in names)


def run(
    evaluators: Mapping[str, Evaluator],
    names: set[str],
    weights: Any,
    say: Say,
    examples: example_files.Folder | None = None,
    rankings: Path | None = None,
    extras: Extras | None = None,
) -> dict[str, float]:
    """Runs some evaluators.

    Args:
      evaluators: by prefix.
      names: the prefixes to run.
      weights: the parameters.
      say: prints a line to the user.
      examples: where examples of what was found go; None: nowhere.
      rankings: the folder where those that are to write their rankings do so; None: nowhere.
      extras: says that rankings cannot be written; None: that is an error.

    Returns:
      Metrics such as `retrieval/test/image_to_text/R@1`.
    """
    out = {}
    for prefix in sorted(names):
        start = time.monotonic()
        show = None if examples is None else examples.show(prefix)
        evaluator: Any = evaluators[prefix]
        more: dict[str, Any] = {}
        if rankings is not None and _writes_rankings(evaluator):
            more |= {"rankings": rankings / name_of(prefix), "extras": extras}
        tell = partial(_tell, say, prefix)
        found = evaluator.run(weights, tell, show, **more)
        out |= {f"{prefix}/{name}": value for name, value in found.items()}
        say(f"{prefix}: done in {time.monotonic() - start:.1f} s")
    return out | traffic(evaluators, out)


def with_rankings(evaluators: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluators, those that rank made to write their rankings, whatever the config says."""
    return {
        prefix: dataclasses.replace(each, config=dataclasses.replace(each.config, rankings=True))
        if isinstance(getattr(each, "config", None), Ranking)
        else each
        for prefix, each in evaluators.items()
    }


def _writes_rankings(evaluator: Any) -> bool:
    config = getattr(evaluator, "config", None)
    return isinstance(config, Ranking) and config.rankings


def _tell(say: Say, prefix: str, text: str) -> None:
    say(f"{prefix}: {text}")
