"""Quality against latency per query: VDR's figure 5, of your own runs.

    python -m benchmarks.tradeoff --run=runs/vdr,runs/dpr --eval=medquad --out=runs/tradeoff.svg

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
6.3 and figure 5: one query at a time on one thread, over inverted indexes, for gates of different
widths and bags of words, beside dense models and BM25.

Queries, documents and metrics are those of an evaluator of the runs (`Ranking` or `Retrieval`). A
gate is the number of terms that stay besides the words of the text, `all`, or a bag of words that
no network encodes (`bag` of a query, `binary` of a document). A dense model is one point. Quality
is of all queries; documents that share no term with a query are not found. Times are of `--limit`
queries, each the median of interleaved rounds; encoding is of a batch of one. A GPU or TPU, if
there is one, encodes and searches dense embeddings. Prints a table, or JSON with `--json`, and
draws to `--out` (.svg, .png or .pdf).
"""

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
if __name__ == "__main__":
    os.environ.update(dict.fromkeys(THREADS, "1"))
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false "
        "intra_op_parallelism_threads=1"
    ).strip()

import argparse  # noqa: E402  # numpy reads the number of threads when it is imported
import json  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402

from benchmarks import measure  # noqa: E402
from benchmarks.tradeoff_systems import (  # noqa: E402
    SAMPLE,
    System,
    bm25_system,
    gates_of,
    model_system,
    word_counts,
)
from big_retrieval import parallel  # noqa: E402
from big_retrieval.config import schema  # noqa: E402
from big_retrieval.data.build import make_readers  # noqa: E402
from big_retrieval.data.fields.reader import stack  # noqa: E402
from big_retrieval.data.sources import evenly_spaced  # noqa: E402
from big_retrieval.data.stores.writer import StoreWriter  # noqa: E402
from big_retrieval.errors import UserError  # noqa: E402
from big_retrieval.evals.bm25 import Bm25  # noqa: E402
from big_retrieval.inference.encoder import Embeddings, Encoder  # noqa: E402
from big_retrieval.inference.load import TrainedModel, load  # noqa: E402
from big_retrieval.models.towers import make_model  # noqa: E402
from big_retrieval.retrieval import dense, inverted, open_index  # noqa: E402
from big_retrieval.retrieval import folder as folders  # noqa: E402
from big_retrieval.retrieval.folder import About  # noqa: E402
from big_retrieval.retrieval.inverted import InvertedIndex  # noqa: E402

BATCH = 256  # rows indexed or searched at a time
ARRAYS = ("pointers.npy", "documents.npy", "values.npy", "embeddings.npy")  # that a search reads
Call = Callable[[int], Any]  # of the number of a query


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--run", required=True, help="run folders, separated by commas")
    parser.add_argument("--eval", required=True, help="evaluator of the runs")
    parser.add_argument("--queries", default="bag,16,64,all", help="gates of queries")
    parser.add_argument("--documents", default="binary,64,all", help="gates of documents")
    parser.add_argument("--metric", default="", help="of the plot; the evaluator's first if empty")
    parser.add_argument("--limit", type=int, default=1000, help="queries that are timed at most")
    parser.add_argument("--bm25", action="store_true", help="BM25 over the texts, too")
    parser.add_argument("--out", type=Path, help="the picture")
    return parser.parse_args()


def build(folder: Path, rows: Embeddings, topology: Any) -> tuple[Any, int]:
    """Returns an index of documents without names, and the bytes that a search reads.

    Args:
      folder: is made.
      rows: CSR [D, V] or embeddings [D, M, N].
      topology: of embeddings.
    """
    partial = folders.begin(folder)
    parts = (rows[start : start + BATCH] for start in range(0, rows.shape[0], BATCH))
    if scipy.sparse.issparse(rows):
        values = inverted.BINARY if (rows.data == 1).all() else "float32"
        about = About(kind=folders.INVERTED, terms=rows.shape[1], values=values)
        about = inverted.build(partial, parts, about)
    else:
        about = dense.build(partial, parts, About(kind=folders.DENSE, topology=topology))
    with StoreWriter(partial, "document") as store:
        store.append({"id": str(number)} for number in range(rows.shape[0]))
    folders.finish(partial, folder, about)
    size = sum((folder / name).stat().st_size for name in ARRAYS if (folder / name).exists())
    return open_index(folder), size


def search_all(index: Any, rows: Embeddings, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices and scores of the best documents of all queries, [Q, depth] each."""
    starts = range(0, rows.shape[0], BATCH)
    found = [index.search(rows[start : start + BATCH], depth) for start in starts]
    return np.concatenate([x[0] for x in found]), np.concatenate([x[1] for x in found])


def search_one(index: Any, rows: Embeddings, depth: int) -> Call:
    """Returns the search of one query."""
    if not isinstance(index, InvertedIndex):
        index.search(rows[:1], depth)  # compiles
        return lambda query: index.search(rows[query : query + 1], depth)
    terms, weights = (np.split(each, rows.indptr[1:-1]) for each in (rows.indices, rows.data))
    return lambda query: index.search_one(terms[query], weights[query], depth)


def encoders(model: TrainedModel, samples: Mapping[str, Any]) -> dict[str, list[Call]]:
    """Returns what encodes a query of the samples on one device.

    "network" makes embeddings, "words" bags of words.
    """
    out: dict[str, list[Call]] = {"network": [], "words": []}
    mesh = parallel.local_mesh(jax.local_devices()[:1])
    made = make_model(model.config, model.tokenizer.vocab_size, model.tokenizer)
    weights = jax.device_put(model.weights, parallel.replicated(mesh))
    encoder = Encoder(made, mesh, 1)
    readers = make_readers(model.config, model.tokenizer)
    row = {"record": np.zeros(1, np.int64), "valid": np.ones(1, bool)}
    for name, texts in samples.items():
        reader, terms = readers[name], encoder.terms(name)

        def arrays(query: int, reader: Any = reader, texts: Any = texts) -> Any:
            return stack(reader, [texts[query % len(texts)] if texts else None])

        def network(query: int, name: str = name, arrays: Any = arrays) -> None:
            encoder.encode_batch(weights, name, {name: arrays(query), **row})

        def words(query: int, terms: Any = terms, arrays: Any = arrays) -> None:
            found = arrays(query)
            terms.bag(found["ids"], found["mask"])

        out["network"].append(network)
        out["words"] += [words] if terms is not None and texts else []
    return out


def word_counter(texts: Sequence[str]) -> dict[str, list[Call]]:
    """As `encoders` for BM25."""
    index = Bm25(texts)
    return {"words": [lambda query: word_counts(index, [texts[query % len(texts)]])]}


def median_ms(calls: Sequence[Call], queries: Sequence[int], rounds: int) -> np.ndarray:
    """Returns milliseconds [calls, T] of single calls: for each query the median of the rounds."""
    seconds = np.empty((rounds, len(calls), len(queries)))
    for turn in range(rounds):
        for place, call in enumerate(calls):
            for column, query in enumerate(queries):
                started = time.perf_counter()
                call(query)
                seconds[turn, place, column] = time.perf_counter() - started
    return 1000 * np.median(seconds, axis=0)


def encoding_ms(calls: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """Returns the mean milliseconds of each way to encode a query, of all its fields."""
    every = [call for own in calls.values() for call in own]
    for call in every:
        for query in range(SAMPLE):
            call(query)  # compiles, for every length of a text
    means = {
        kind: median_ms(own, range(SAMPLE), 3).mean(axis=1).sum() for kind, own in calls.items()
    }
    return {kind: float(mean) for kind, mean in means.items()}


def points_of(
    name: str, system: System, encoding: Mapping[str, float], topology: Any, work: Path
) -> tuple[list[dict[str, Any]], list[Call]]:
    """Returns the points of a system without their search times, and their searches."""
    queries = {gate: system.rows("query", mode) for gate, mode in system.gates["query"].items()}
    points, calls = [], []
    for document, mode in system.gates["document"].items():
        index, size = build(work / document, system.rows("document", mode), topology)
        for query, rows in queries.items():
            found = search_all(index, rows, system.depth)
            words = system.gates["query"][query].bags == "query"
            points.append(
                {"model": name, "queries": query, "documents": document, "index_bytes": size}
                | {"encoding_ms": encoding["words" if words else "network"]}
                | {"metrics": system.scorer(*found)}
            )
            calls.append(search_one(index, rows, system.depth))
    return points, calls


def measured(args: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Returns the points of all systems."""
    points, calls, rows = [], [], 0
    given: Any = {"query": args.queries.split(","), "document": args.documents.split(",")}
    for run in args.run.split(","):
        model = load(run, batch_size=BATCH)
        gates = gates_of(model.config, args.eval, given)
        system = model_system(model, args.eval, gates)
        encoding = encoding_ms(encoders(load(run, batch_size=1), system.samples))
        topology = schema.to_plain(model.config.topology)
        own, searches = points_of(run, system, encoding, topology, work / str(len(points)))
        points, calls = points + own, calls + searches
        rows = system.rows("query", next(iter(gates["query"].values()))).shape[0]
    if args.bm25:
        system = bm25_system(load(args.run.split(",")[0]).config, args.eval)
        encoding = encoding_ms(word_counter([str(x) for x in system.samples["query"] or ()]))
        own, searches = points_of("BM25", system, encoding, "", work / "bm25")
        points, calls = points + own, calls + searches
    times = median_ms(calls, evenly_spaced(rows, args.limit).tolist(), args.rounds)
    for point, taken in zip(points, times, strict=True):
        point["search_ms"] = float(taken.mean())
        point["search_p95_ms"] = float(np.percentile(taken, 95))
    return points


def draw(points: Sequence[Mapping[str, Any]], metric: str, out: Path) -> None:
    """Draws the metric against the milliseconds of the search, and of encoding and search."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, both = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    both[0].set(xscale="log", xlabel="milliseconds per query, search alone", ylabel=metric)
    both[1].set(xscale="log", xlabel="milliseconds per query, encoding and search")
    for model, document in dict.fromkeys((x["model"], x["documents"]) for x in points):
        own = [x for x in points if (x["model"], x["documents"]) == (model, document)]
        values = [x["metrics"][metric] for x in own]
        for axes, extra in zip(both, (0, 1), strict=True):
            times = [x["search_ms"] + extra * x["encoding_ms"] for x in own]
            axes.plot(times, values, "o-", label=f"{model}, documents: {document}")
            for x, y, point in zip(times, values, own, strict=True):
                axes.annotate(point["queries"], (x, y), fontsize=7, xytext=(3, 3),
                              textcoords="offset points")  # fmt: skip
    for axes in both:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    both[0].legend(fontsize=8)
    figure.savefig(out)


def main() -> None:
    """Measures, prints and draws."""
    args = flags()
    try:
        with tempfile.TemporaryDirectory() as work:
            points = measured(args, Path(work))
    except UserError as problem:
        raise SystemExit(f"error: {problem}") from None
    metric = args.metric or next(iter(points[0]["metrics"]))
    if metric not in points[0]["metrics"]:
        raise SystemExit(f"error: --metric is one of {', '.join(points[0]['metrics'])}.")
    print("| model | queries | documents | metric | search, mean | p95 | encoding | MiB |")
    print(f"|{' --- |' * 8}")
    for x in points:
        numbers = (x["search_ms"], x["search_p95_ms"], x["encoding_ms"], x["index_bytes"] / 2**20)
        cells = [x["model"], x["queries"], x["documents"], f"{metric} {x['metrics'][metric]:.4f}"]
        print(f"| {' | '.join([*cells, *(f'{number:.3g}' for number in numbers)])} |")
    print(measure.machine())
    if args.json:
        print(json.dumps({"benchmark": "tradeoff", "evaluator": args.eval, "points": points}))
    if args.out:
        draw(points, metric, args.out)


if __name__ == "__main__":
    main()
