"""Quality against latency of one or several models: encode once, index, search, judge.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
6.3, figure 5 and appendix G: one query at a time on one thread, over inverted indexes, for gates
of different widths, bags of words without a network, and dense models beside them.
"""

import json
import logging
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.inference.load import find, load, read_config
from big_retrieval.runtime import messages
from big_retrieval.tradeoff.asking import Encoding, Job, Setting, one_thread
from big_retrieval.tradeoff.building import build, entries, save
from big_retrieval.tradeoff.by_words import make_bm25_subject, ranking_of
from big_retrieval.tradeoff.judges import Judge
from big_retrieval.tradeoff.subjects import (
    System,
    choose,
    evenly,
    make_subject,
    metrics_of,
    sparse,
    sweep,
)

BATCH = 256  # rows encoded at a time
log = logging.getLogger(__name__)
Ask = Callable[[Path], None]


@dataclass(frozen=True)
class TradeoffOptions:
    """What is asked for.

    Attributes:
      checkpoints: of one or several models, each a run or checkpoint folder.
      evaluator: its name in `config.evals`; "": the only one.
      queries: gates of queries; none: the default ones.
      documents: gates of documents.
      metric: that the plot shows; "": the evaluator's first.
      limit: queries that are timed at most.
      rounds: how often each is.
      bm25: measure BM25, too.
    """

    checkpoints: Sequence[str]
    evaluator: str = ""
    queries: Sequence[str] = ()
    documents: Sequence[str] = ()
    metric: str = ""
    limit: int = 1000
    rounds: int = 5
    bm25: bool = False


@dataclass
class _Plan:
    """A job as it grows, and what its answers are read with.

    Attributes:
      settings: of the job.
      encodings: of the job, one of each model.
      rows: what is known of each setting already.
      judges: of each setting.
      shape: of the first model: depth, metrics, queries, documents.
      title: of the evaluator.
    """

    settings: list[Setting] = field(default_factory=list)
    encodings: list[Encoding] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    judges: list[Judge] = field(default_factory=list)
    shape: tuple[int, tuple[str, ...], int, int] | None = None
    title: str = ""


@dataclass(frozen=True)
class _Model:
    """What a setting belongs to.

    Attributes:
      name: of the plot.
      checkpoint: "" of BM25.
      lexical: whether its gates can be narrowed.
    """

    name: str
    checkpoint: str
    lexical: bool


def in_a_child(folder: Path) -> None:
    """Does a job in a process of its own, which has one thread.

    Raises:
      UserError: it ended early.
    """
    command = [sys.executable, "-m", "big_retrieval.tradeoff.asking", str(folder)]
    command.append(str(messages.settings()["level"]))
    code = subprocess.run(command, env=one_thread(os.environ), check=False).returncode
    if code:
        raise UserError(f"the process that searches ended with status {code}; it says why above.")


def measure(
    options: TradeoffOptions, evaluators: Sequence[str], work: Path, ask: Ask = in_a_child
) -> dict[str, Any]:
    """All numbers, as tradeoff.json has them.

    Args:
      options: what is asked for.
      evaluators: what `check` gave for it.
      work: an empty folder, for indexes and queries.
      ask: does the job of a folder.

    Raises:
      UserError: models, evaluators or gates that do not go together.
    """
    names, plan = named(options.checkpoints), _Plan()
    for checkpoint, name, evaluator in zip(options.checkpoints, names, evaluators, strict=True):
        with messages.about(name):
            model = load(checkpoint, batch_size=BATCH)
            subject = make_subject(model, evaluator, options.queries, options.documents)
            lexical = sparse(model.config, model.config.evals[evaluator])
            _add(plan, _Model(name, str(model.folder), lexical), subject, work)
    if options.bm25:
        names = [*names, "BM25"]
        subject = make_bm25_subject(read_config(find(options.checkpoints[0])), evaluators[0])
        with messages.about("BM25"):
            _add(plan, _Model("BM25", "", False), subject, work)
    assert plan.shape is not None  # there is a model
    depth, metrics, queries, documents = plan.shape
    chosen = evenly(queries, options.limit)
    Job(plan.settings, plan.encodings, depth, chosen, options.rounds).save(work)
    ask(work)
    models = {}
    for name, taken in zip(names, json.loads((work / "encoding.json").read_text()), strict=True):
        models[name] = {f"{part}_ms": 1000 * seconds for part, seconds in taken.items()}
    return {
        "evaluator": plan.title,
        "metric": options.metric or metrics[0],
        "metrics": list(metrics),
        "queries": queries,
        "timed": len(chosen),
        "rounds": options.rounds,
        "documents": documents,
        "depth": depth,
        "machine": machine(),
        "models": models,
        "points": [_point(work, number, plan, models) for number in range(len(plan.rows))],
    }


def check(options: TradeoffOptions) -> list[str]:
    """The evaluator of each model, before anything is encoded.

    Raises:
      UserError: a checkpoint cannot be used; there is no such evaluator or metric; gates are asked
        for and no model is lexical.
    """
    if not options.checkpoints:
        raise UserError("--run is missing: a run or checkpoint folder, or several of them.")
    found, lexical = [], False
    for checkpoint in options.checkpoints:
        config = read_config(find(checkpoint))
        name = choose(config, options.evaluator)
        ev = config.evals[name]
        known = metrics_of(ev)
        if options.metric and options.metric not in known:
            raise UserError(
                f"--metric is {options.metric!r}, which evals.{name} of {checkpoint} does not "
                f"measure; it has: {', '.join(known)}."
            )
        sweep(config, ev, options.queries, options.documents)
        if options.bm25:
            ranking_of(config, name)
        lexical = lexical or sparse(config, ev)
        found.append(name)
    if (options.queries or options.documents) and not lexical:
        flag = "--queries" if options.queries else "--documents"
        raise UserError(
            f"{flag} names gates of lexical models, and {options.checkpoints[0]} has dense fields; "
            "leave it out."
        )
    return found


def named(checkpoints: Sequence[str]) -> list[str]:
    """What the models are called: by their run's folder, with its parent's where two are alike.

    Raises:
      UserError: a folder is given twice.
    """
    paths = [Path(each).resolve() for each in checkpoints]
    paths = [path.parent.parent if path.parent.name == "checkpoints" else path for path in paths]
    count = Counter(path.name for path in paths)
    names = [f"{p.parent.name}/{p.name}" if count[p.name] > 1 else p.name for p in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--run names {twice} twice; give each model once.")
    return names


def _add(plan: _Plan, model: _Model, subject: System, work: Path) -> None:
    """Writes the queries and indexes of all settings of a model."""
    number = len(plan.encodings)
    plan.encodings.append(Encoding(model.checkpoint, subject.samples))
    asking = [(gate, subject.rows("query", gate.mode)) for gate in subject.gates["query"]]
    files = [save(work / f"queries-{number}-{gate.name}", rows) for gate, rows in asking]
    shape = (subject.depth, subject.metrics, asking[0][1].shape[0], subject.records)
    plan.shape, plan.title = plan.shape or shape, plan.title or subject.title
    if plan.shape != shape:
        raise UserError(
            f"{model.name} is measured by other queries, documents or metrics than "
            f"{plan.rows[0]['model']} ({shape} and {plan.shape}), so one plot cannot hold both."
        )
    for gate in subject.gates["document"]:
        index = f"index-{number}-{gate.name}"
        size = build(work / index, subject.rows("document", gate.mode), subject.topology)
        log.info(f"indexed {subject.records:,} documents ({gate.name})")
        for (other, rows), file in zip(asking, files, strict=True):
            known = {
                "model": model.name, "lexical": model.lexical, "query": other.name,
                "document": gate.name, "encoded": not other.words, "query_entries": entries(rows),
                **size,
            }  # fmt: skip
            plan.rows.append(known)
            plan.judges.append(subject.judge)
            plan.settings.append(Setting(file, index))


def _point(
    work: Path, number: int, plan: _Plan, models: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """All numbers of a setting: quality, latency, size."""
    row = dict(plan.rows[number])
    with np.load(work / f"found-{number}.npz", allow_pickle=False) as found:
        metrics = plan.judges[number].metrics(found["numbers"], found["scores"])
        taken = 1000 * found["seconds"]
    encoding = models[row["model"]]["network_ms" if row.pop("encoded") else "words_ms"]
    search = {"mean": float(taken.mean())}
    search |= {f"p{percent}": float(np.percentile(taken, percent)) for percent in (50, 95)}
    latency = search["mean"] + encoding
    return {
        **row, "metrics": metrics, "search_ms": search, "encoding_ms": encoding,
        "latency_ms": latency,
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import jax

    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), cpu)
    return {
        "cpu": cpu, "cores": os.cpu_count(), "threads": 1, "device": jax.devices()[0].device_kind,
        "platform": platform.platform(), "python": platform.python_version(),
        "numpy": np.__version__, "jax": jax.__version__,
    }  # fmt: skip
