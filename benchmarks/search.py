"""Search, one query at a time on one thread: the inverted index beside other exact ones.

    python -m benchmarks.search
    python -m benchmarks.search --entries=768 --peers=scipy
    python -m benchmarks.search --peers=scipy,dense,numpy,faiss,seismic

Documents have about `--entries` values in columns whose frequencies fall like 1 / rank (the most
frequent ones are in every document); the words of the queries are drawn by the same frequencies, so
that most of them are stop words: their lists are the longest that there are. Dense peers search as
many embeddings of `--dim` numbers. "bag" asks by 7 to 12 words, "weighted" by the rows of
documents, "rare" by words that are drawn with equal chances. Percentiles are over queries, of the
medians of each query's interleaved rounds.

numpy, faiss (pip install faiss-cpu) and ours score every embedding. seismic (pip install
pyseismic-lsr) goes through all documents, its exact search; `--seismic-postings` also times its
index, which is approximate, with so many postings a list, without cuts of the query and at heap
factor 0. Its size is that of its saved file, of the documents alone it is the memory that they
take.
"""

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
os.environ.update(dict.fromkeys(THREADS, "1"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1"
).strip()

import argparse  # noqa: E402  # numpy reads the number of threads when it is imported
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from scipy import sparse  # noqa: E402

from benchmarks import measure  # noqa: E402
from benchmarks.search_seismic import Found, Search, seismic_searches  # noqa: E402
from big_retrieval.data.stores.writer import StoreWriter  # noqa: E402
from big_retrieval.retrieval import dense, inverted, open_index  # noqa: E402
from big_retrieval.retrieval import folder as folders  # noqa: E402
from big_retrieval.retrieval.folder import About  # noqa: E402
from big_retrieval.retrieval.inverted import InvertedIndex  # noqa: E402

BATCH = 1024  # documents of a batch
WORDS = (7, 12)  # of a query, least and most
PEERS = ("scipy", "dense", "numpy", "faiss", "seismic")


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=200, help="values of a document, about")
    parser.add_argument("--columns", type=int, default=29_523)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--dim", type=int, default=768, help="of dense embeddings")
    parser.add_argument("--values", choices=["float32", "float16"], default="float32")
    parser.add_argument("--memory", type=int, default=512, help="MiB to build with")
    parser.add_argument(
        "--peers", default="scipy,dense,numpy,faiss", help="of: " + ", ".join(PEERS)
    )
    parser.add_argument("--cpu", action="store_true", help="CPU time, for a shared machine")
    parser.add_argument("--seismic-postings", type=int, default=0, help="0: no index of seismic")
    return parser.parse_args()


def frequencies(columns: int, entries: int) -> np.ndarray:
    """The share of documents that have each column: min(1, c / rank), in sum `entries`."""
    ranks = np.arange(1, columns + 1)
    low, high = 0.0, float(columns)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        fits = np.minimum(1, middle / ranks).sum() < entries
        low, high = (middle, high) if fits else (low, middle)
    return np.minimum(1, high / ranks)


def make_documents(args: argparse.Namespace) -> Any:
    """Random documents as `csr_array` [documents, columns], their values from a gamma law."""
    rng = np.random.default_rng(0)
    shares = frequencies(args.columns, args.entries)
    counts = rng.binomial(args.documents, shares)
    places = [
        np.sort(rng.choice(args.documents, count, replace=False, shuffle=False)).astype(np.int32)
        for count in counts.tolist()
    ]
    values = rng.gamma(2, 0.5, int(counts.sum())).astype(np.float32)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = (args.documents, args.columns)
    whole = sparse.csc_array((values, np.concatenate(places), pointers), shape=shape)
    return whole.tocsr()


def make_queries(args: argparse.Namespace, documents: Any) -> dict[str, Any]:
    """Queries as `csr_array` [queries, columns]: kind -> rows."""
    rng = np.random.default_rng(1)
    shares = 1 / np.arange(1, args.columns + 1)
    shares /= shares.sum()
    kinds = {"bag": shares, "rare": None}
    out: dict[str, Any] = {}
    for kind, chances in kinds.items():
        rows = [
            np.sort(rng.choice(args.columns, count, replace=False, p=chances))
            for count in rng.integers(WORDS[0], WORDS[1] + 1, args.queries)
        ]
        pointers = np.cumsum([0, *map(len, rows)])
        ones = np.ones(pointers[-1], np.float32)
        shape = (args.queries, args.columns)
        out[kind] = sparse.csr_array((ones, np.concatenate(rows), pointers), shape=shape)
    out["weighted"] = documents[rng.choice(args.documents, args.queries, replace=False)]
    return out


def build(folder: Path, args: argparse.Namespace, documents: Any) -> tuple[InvertedIndex, float]:
    """An inverted index of the documents, and the seconds that it took with its checksums."""
    partial, started = folders.begin(folder), time.perf_counter()
    about = About(kind="inverted", terms=args.columns, values=args.values)
    batches = (documents[i : i + BATCH] for i in range(0, args.documents, BATCH))
    about = inverted.build(partial, batches, about, memory=args.memory * 2**20)
    write_ids(partial, args.documents)
    folders.finish(partial, folder, about)
    seconds = time.perf_counter() - started
    index = open_index(folder)
    if not isinstance(index, InvertedIndex):
        raise TypeError(folder)
    return index, seconds


def write_ids(folder: Path, count: int) -> None:
    """The ids 0, 1, ..."""
    with StoreWriter(folder, "document") as store:
        store.append({"id": str(number)} for number in range(count))


def sparse_searches(
    args: argparse.Namespace, peers: set[str], index: InvertedIndex, queries: Any, documents: Any
) -> dict[str, Search]:
    """Name -> a search by a query's number, of ours and of the peers over sparse rows."""
    rows = [queries[[row]] for row in range(args.queries)]
    out: dict[str, Search] = {
        "ours": lambda q: index.search_one(rows[q].indices, rows[q].data, args.depth)
    }
    if "scipy" in peers:
        turned = documents.T.tocsr()  # [V, D]: the same lists

        def product(q: int) -> Found:
            scores = (rows[q] @ turned).toarray()[0]
            best = np.argpartition(-scores, args.depth)[: args.depth]
            best = best[np.lexsort((best, -scores[best]))]
            return best, scores[best]

        out["scipy"] = product
    return out


def dense_searches(args: argparse.Namespace, peers: set[str], folder: Path) -> dict[str, Search]:
    """Name -> a search by a query's number, over dense embeddings."""
    rng = np.random.default_rng(2)
    embeddings = rng.standard_normal((args.documents, args.dim), np.float32)
    queries = rng.standard_normal((args.queries, args.dim), np.float32)
    out: dict[str, Search] = {}
    if "numpy" in peers:

        def product(q: int) -> np.ndarray:
            scores = embeddings @ queries[q]
            best = np.argpartition(-scores, args.depth)[: args.depth]
            return best[np.argsort(-scores[best])]

        out["numpy"] = product
    if "dense" in peers:
        partial = folders.begin(folder)
        batches = (embeddings[i : i + BATCH, None] for i in range(0, args.documents, BATCH))
        about = dense.build(partial, batches, About(kind="dense", topology="inner"))
        write_ids(partial, args.documents)
        folders.finish(partial, folder, about)
        index = open_index(folder)
        out["dense"] = lambda q: index.search(queries[q : q + 1, None], args.depth)  # type: ignore
    if "faiss" in peers:
        faiss = measure.optional("faiss")
        if faiss is not None:
            faiss.omp_set_num_threads(1)
            flat = faiss.IndexFlatIP(args.dim)
            flat.add(embeddings)
            out["faiss"] = lambda q: flat.search(queries[q : q + 1], args.depth)
    return out


def timed(searches: Mapping[str, Search], args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Milliseconds of each query, the median of the rounds: name -> [queries]."""
    found = {name: np.empty((args.rounds, args.queries)) for name in searches}
    clock = time.process_time if args.cpu else time.perf_counter
    for name, search in searches.items():
        search(0)  # compiles, and reads what is mapped
        found[name][:] = np.nan
    for number in range(args.rounds):
        for name, search in searches.items():
            for query in range(args.queries):
                started = clock()
                search(query)
                found[name][number, query] = 1000 * (clock() - started)
    return {name: np.median(times, axis=0) for name, times in found.items()}


def percentiles(label: str, times: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """The percentiles of every search, for the report."""
    for name, found in times.items():
        for percent in (50, 95, 99):
            yield f"{label}_{name}_p{percent}_ms", float(np.percentile(found, percent))


def exactness(
    searches: Mapping[str, Search], queries: Any, documents: Any, depth: int
) -> dict[str, float]:
    """Of each search the share of the best scores that it has, by the product in float64."""
    found = {}
    count = min(50, queries.shape[0])
    table = (queries[:count].astype(np.float64) @ documents.T.astype(np.float64)).toarray()
    for name, search in searches.items():
        good = 0
        for query in range(count):
            numbers = np.asarray(search(query)[0])
            least = np.partition(table[query], -depth)[-depth]
            good += int((table[query][numbers] >= least * (1 - 1e-6)).sum())
        found[f"{name}_recall"] = good / (depth * count)
    return found


def main() -> None:
    """Builds, checks and times."""
    args = flags()
    peers = set(filter(None, args.peers.split(",")))
    documents = make_documents(args)
    asked = make_queries(args, documents)
    lengths = np.bincount(documents.indices, minlength=args.columns)
    row: dict[str, Any] = {"benchmark": "search", "machine": measure.machine()}
    row |= {
        name: getattr(args, name) for name in ("documents", "columns", "depth", "values", "cpu")
    }
    row["entries_a_document"] = documents.nnz / args.documents
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        index, seconds = build(folder / "inverted", args, documents)
        row["build_seconds"] = seconds
        row["index_bytes"] = sum(path.stat().st_size for path in index.folder.iterdir())
        others = dense_searches(args, peers, folder / "dense")
        for kind, queries in asked.items():
            touched = lengths[queries.indices].sum() / args.queries
            row[f"{kind}_entries_touched"] = float(touched)
            searches = sparse_searches(args, peers, index, queries, documents)
            if kind == "bag" and "seismic" in peers:
                more, built = seismic_searches(args, queries, documents)
                searches |= more
                row |= built
            exact = exactness(searches, queries, documents, args.depth)
            row |= {f"{kind}_{name}": value for name, value in exact.items()}
            if kind in ("bag", "weighted"):
                searches |= others
            row |= percentiles(kind, timed(searches, args))
            if f"{kind}_faiss_p50_ms" in row:
                ratio = row[f"{kind}_faiss_p50_ms"] / row[f"{kind}_ours_p50_ms"]
                row[f"{kind}_faiss_by_ours_p50"] = ratio
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
