"""Quality against latency of one or several models: encode once, index, search, score.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
6.3, figure 5 and appendix G: one query at a time on one thread, over inverted indexes, for gates
of different widths, bags of words without a network, and dense models and BM25 beside them.
"""

import logging
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings
from big_retrieval.inference.load import find, load, read_config
from big_retrieval.retrieval import dense, inverted
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import TextsWriter
from big_retrieval.retrieval.folder import About
from big_retrieval.runtime import messages
from big_retrieval.tradeoff.latency import LatencyJob, in_a_child
from big_retrieval.tradeoff.systems import (
    BM25,
    Scorer,
    SearchTask,
    System,
    bm25_system,
    check_bm25,
    choose,
    evenly,
    gates_of,
    lexical,
    model_system,
)

BATCH = 256  # rows encoded or indexed at a time
ARRAYS = ("pointers.npy", "documents.npy", "values.npy", "embeddings.npy")  # that a search reads
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
    """

    checkpoints: Sequence[str]
    evaluator: str = ""
    queries: Sequence[str] = ()
    documents: Sequence[str] = ()
    metric: str = ""
    limit: int = 1000
    rounds: int = 5
    bm25: bool = False


@dataclass(frozen=True)
class Setting:
    """A system with a gate of its queries and a gate of its documents: a point of the plot.

    Attributes:
      known: the entries of the report that are known before anything is measured.
      encoding: what turns a text into the query, "network_ms" or "words_ms".
      scorer: the system's metrics.
      queries: the encoded queries.
      index: name of the index of the encoded documents.
    """

    known: Mapping[str, Any]
    encoding: str
    scorer: Scorer
    queries: Embeddings
    index: str


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
        config = read_config(find(checkpoint))
        name = choose(config, options.evaluator)
        metrics = config.evals[name].search_metrics
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
    names += ["BM25"] if options.bm25 else []
    settings: list[Setting] = []
    encodings: list[Any] = []
    task: SearchTask | None = None
    for name in names:
        with messages.about(name):
            checkpoint, system = next(systems)
            task = task or system.task
            if system.task != task:
                raise UserError(
                    f"{name} is measured by other queries, documents or metrics than {names[0]} "
                    f"({system.task} and {task}), so one plot cannot hold both."
                )
            settings += settings_of(name, system, work, f"index-{len(encodings)}")
            encodings.append((checkpoint, system.samples))
            log.info(f"indexed {task.documents:,} documents")
    assert task is not None  # there is a model
    timed = evenly(task.queries, options.limit)
    jobs = [(each.queries, each.index) for each in settings]
    job = LatencyJob(jobs, encodings, task.depth, timed, options.rounds)
    result = in_a_child(job, work)
    models = {
        name: {f"{part}_ms": 1000 * mean for part, mean in each.items()}
        for name, each in zip(names, result.encodings, strict=True)
    }
    points = zip(settings, result.found, 1000 * result.seconds, strict=True)
    return {
        "evaluator": task.title,
        "metric": options.metric or task.metrics[0],
        "metrics": list(task.metrics),
        "queries": task.queries,
        "timed": len(timed),
        "rounds": options.rounds,
        "documents": task.documents,
        "depth": task.depth,
        "machine": machine(),
        "models": models,
        "points": [_point(setting, found, taken, models) for setting, found, taken in points],
    }


def _systems(options: TradeoffOptions, evaluators: Sequence[str]) -> Iterator[tuple[str, System]]:
    """Yields the checkpoint and the system of each model, then "" and the system of BM25."""
    for checkpoint, evaluator in zip(options.checkpoints, evaluators, strict=True):
        model = load(checkpoint, batch_size=BATCH)
        gates = gates_of(model.config, evaluator, options.queries, options.documents)
        yield str(model.folder), model_system(model, evaluator, gates)
    if options.bm25:
        config = read_config(find(options.checkpoints[0]))
        yield "", bm25_system(config, evaluators[0])


def settings_of(name: str, system: System, work: Path, index: str) -> list[Setting]:
    """The settings of a system: all pairs of gates, with indexes built in a folder.

    Args:
      name: of the system.
      system: encodes queries and documents.
      work: the folder.
      index: prefix of the indexes' names.
    """
    queries = {gate: system.rows("query", mode) for gate, mode in system.gates["query"].items()}
    out = []
    for document, mode in system.gates["document"].items():
        place = f"{index}-{document}"
        size = build(work / place, system.rows("document", mode), system.topology)
        for query, rows in queries.items():
            known = {
                "model": name, "lexical": document not in ("exact", BM25), "query": query,
                "document": document, "query_entries": entries(rows), **size,
            }  # fmt: skip
            bag = system.gates["query"][query].bags == "query"
            encoding = "words_ms" if bag else "network_ms"
            out.append(Setting(known, encoding, system.scorer, rows, place))
    return out


def build(out: Path, rows: Embeddings, topology: str) -> dict[str, Any]:
    """Writes an index of documents without names.

    Args:
      out: the folder to make.
      rows: CSR [D, V], or embeddings [D, M, N].
      topology: of embeddings.

    Returns:
      `index_bytes` of the arrays that a search reads, and `document_entries`, numbers of a document
      on average.
    """
    partial = folders.begin(out)
    parts = (rows[start : start + BATCH] for start in range(0, rows.shape[0], BATCH))
    if scipy.sparse.issparse(rows):
        values = inverted.BINARY if (rows.data == 1).all() else "float32"
        about = About(kind=folders.INVERTED, terms=rows.shape[1], values=values)
        about = inverted.build(partial, parts, about)
    else:
        about = dense.build(partial, parts, About(kind=folders.DENSE, topology=topology))
    with TextsWriter(partial, "ids") as ids:
        ids.append(map(str, range(rows.shape[0])))
    folders.finish(partial, out, about)
    size = sum((out / name).stat().st_size for name in ARRAYS if (out / name).exists())
    return {"index_bytes": size, "document_entries": entries(rows)}


def entries(rows: Embeddings) -> float:
    """How many numbers a row has on average; of sparse rows only the stored values count."""
    return (rows.nnz if scipy.sparse.issparse(rows) else rows.size) / max(rows.shape[0], 1)


def named(checkpoints: Sequence[str]) -> list[str]:
    """Names of the models: of their run folders, with the parent's name if two are equal.

    Raises:
      UserError: a folder is given twice.
    """
    paths = [Path(each).resolve() for each in checkpoints]
    paths = [path.parent.parent if path.parent.name == "checkpoints" else path for path in paths]
    count = Counter(path.name for path in paths)
    names = [f"{p.parent.name}/{p.name}" if count[p.name] > 1 else p.name for p in paths]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"--run names {repeated} twice; give each model once.")
    return names


def _point(
    setting: Setting,
    found: tuple[np.ndarray, np.ndarray],
    taken: np.ndarray,
    models: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The numbers of a setting: quality, latency (milliseconds, [T]), size."""
    search = {"mean": float(taken.mean())}
    search |= {f"p{percent}": float(np.percentile(taken, percent)) for percent in (50, 95)}
    encoding = models[setting.known["model"]][setting.encoding]
    return {
        **setting.known, "metrics": setting.scorer(*found), "search_ms": search,
        "encoding_ms": encoding, "latency_ms": search["mean"] + encoding,
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
