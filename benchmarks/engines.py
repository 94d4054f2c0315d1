"""Search engines with exported documents: whether they find what our index finds.

    python -m benchmarks.engines --engines=qdrant,qdrant_edge
    python -m benchmarks.engines --engines=lucene --anserini=anserini-fatjar.jar

Documents and queries are those of `benchmarks.search`: "bag" asks by 7 to 12 words, "weighted" by
the values of a document. "dense" are random unit vectors of `--dim` numbers. For every engine: the
seconds and MiB of the export, the seconds and MiB of the engine's index, milliseconds a query, how
many of our best ten documents the engine has among its own (overlap), and the largest difference of
a score from the exact one, relative to it.

qdrant is the local mode of qdrant-client, in memory; qdrant_edge (qdrant-edge-py) is the engine of
Qdrant's server in this process. lucene is
Anserini's jar, which a release of pyserini has, and a Java that runs it; weights are quantised by
`--quantise`, those of a query by repeating its words, so that its times are those of a process.
"""

import argparse
import dataclasses
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.search import BATCH, build, make_documents, make_queries
from big_retrieval.retrieval import exports
from big_retrieval.retrieval.exports import Batch, ExportedDocuments

Answers = list[tuple[list[str], list[float]]]  # of each query: ids and scores
Kinds = dict[str, Any]  # kind -> queries, csr_array [q, V] or embeddings [q, N]
Found = tuple[dict[str, Answers], dict[str, float]]  # kind -> answers; what was measured
DENSE = ("qdrant", "qdrant_edge")  # engines that take dense embeddings, too


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--entries", type=int, default=200, help="values of a document, about")
    parser.add_argument("--columns", type=int, default=29_523)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--dim", type=int, default=256, help="of dense embeddings")
    parser.add_argument("--quantise", type=float, default=100.0, help="of lucene's weights")
    parser.add_argument("--engines", default="qdrant", help="of: " + ", ".join(ENGINES))
    parser.add_argument("--anserini", default="", help="the jar of Anserini")
    parser.set_defaults(values="float32", memory=512)
    return parser.parse_args()


def batches(rows: Any) -> Iterator[Batch]:
    """Documents with their numbers as ids."""
    for start in range(0, rows.shape[0], BATCH):
        part = rows[start : start + BATCH]
        ids = [str(number) for number in range(start, start + part.shape[0])]
        yield ids, [""] * len(ids), part


def exported(name: str, folder: Path, export: ExportedDocuments) -> dict[str, float]:
    """Writes an export; its seconds and bytes."""
    folder.mkdir()
    started = time.perf_counter()
    exports.write_export(name, folder, export)
    return {"export_seconds": time.perf_counter() - started, "export_bytes": size(folder)}


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def asked(kinds: Kinds, search: Callable[[Any], tuple[list[str], list[float]]]) -> Found:
    """The answers to all queries, one after the other, and the milliseconds of one."""
    found, times = {}, {}
    for kind, queries in kinds.items():
        search(queries[[0]])
        started = time.perf_counter()
        found[kind] = [search(queries[[row]]) for row in range(queries.shape[0])]
        times[f"{kind}_ms"] = 1000 * (time.perf_counter() - started) / queries.shape[0]
    return found, times


def qdrant(
    folder: Path, args: argparse.Namespace, export: ExportedDocuments, kinds: Kinds
) -> Found:
    """The local mode of Qdrant's client, in memory."""
    from qdrant_client import QdrantClient, models  # pyright: ignore[reportMissingImports]

    from big_retrieval.retrieval.exports import qdrant_upload

    about = exported("qdrant", folder / "files", export)
    client, started = QdrantClient(":memory:"), time.perf_counter()
    qdrant_upload.upload(client, "documents", folder / "files")
    about["index_seconds"] = time.perf_counter() - started

    def search(query: Any) -> tuple[list[str], list[float]]:
        name, vector = "dense", query[0]
        if export.words:
            name = "lexical"
            vector = models.SparseVector(indices=query.indices, values=query.data)
        answer = client.query_points("documents", query=vector, using=name, limit=args.depth)
        return [p.payload["id"] for p in answer.points], [p.score for p in answer.points]

    found, times = asked(kinds, search)
    return found, about | times


def qdrant_edge(
    folder: Path, args: argparse.Namespace, export: ExportedDocuments, kinds: Kinds
) -> Found:
    """The engine of Qdrant's server, in this process."""
    import qdrant_edge as edge  # pyright: ignore[reportMissingImports]

    from big_retrieval.retrieval.exports import qdrant_upload

    about = exported("qdrant", folder / "files", export)
    name = "lexical" if export.words else "dense"
    if export.words:
        sparse = edge.EdgeSparseVectorParams()
        config = edge.EdgeConfig(sparse_vectors={name: sparse}, wal_enabled=False)
        vectors = qdrant_upload.sparse_vectors(folder / "files")
    else:
        params = edge.EdgeVectorParams(args.dim, edge.Distance.Dot)
        config = edge.EdgeConfig(vectors={name: params}, wal_enabled=False)
        vectors = qdrant_upload.dense_vectors(folder / "files")
    started = time.perf_counter()
    (folder / "shard").mkdir()
    shard = edge.EdgeShard.create(str(folder / "shard"), config)
    points = []
    for point in qdrant_upload.points(folder / "files", name, vectors):
        vector = {key: _edge_vector(edge, value) for key, value in point.vector.items()}
        points.append(edge.Point(point.id, vector, point.payload))
        if len(points) == BATCH:
            shard.update(edge.UpdateOperation.upsert_points(points))
            points = []
    if points:
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.flush()
    about["index_seconds"] = time.perf_counter() - started
    about["index_bytes"] = size(folder / "shard")
    exact = edge.SearchParams(exact=True)

    def search(query: Any) -> tuple[list[str], list[float]]:
        if export.words:
            vector = edge.SparseVector(query.indices.tolist(), query.data.tolist())
        else:
            vector = query[0].tolist()
        nearest = edge.Query.Nearest(vector, name)
        answer = shard.query(edge.QueryRequest(args.depth, query=nearest, params=exact))
        return [str(point.id) for point in answer], [point.score for point in answer]

    found, times = asked(kinds, search)
    return found, about | times


def _edge_vector(edge: Any, vector: Any) -> Any:
    """A vector of `qdrant_upload` as the engine takes it."""
    if isinstance(vector, list):
        return vector
    return edge.SparseVector(vector.indices, vector.values)


def lucene(
    folder: Path, args: argparse.Namespace, export: ExportedDocuments, kinds: Kinds
) -> Found:
    """Lucene's impact index, by Anserini's command lines."""
    java = ["java", "-Xmx4g", "-cp", args.anserini]
    export = dataclasses.replace(export, quantise=args.quantise)
    about = exported("lucene", folder / "files", export)
    started, index = time.perf_counter(), folder / "index"
    command = [
        *java, "io.anserini.index.IndexCollection", "-collection", "JsonVectorCollection",
        "-input", folder / "files", "-index", index, "-impact", "-pretokenized", "-threads", "1",
        "-generator", "DefaultLuceneDocumentGenerator", "-optimize",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    about["index_seconds"] = time.perf_counter() - started
    about["index_bytes"] = size(index)
    found: dict[str, Answers] = {}
    for kind, queries in kinds.items():
        factor = 1 if kind == "bag" else 10  # how often Lucene's query has a word of weight 1
        topics, run = folder / f"{kind}.tsv", folder / f"{kind}.trec"
        topics.write_text("".join(f"{q}\t{_repeated(export, queries[[q]], factor)}\n"
                                  for q in range(queries.shape[0])))  # fmt: skip
        command = [
            *java, "io.anserini.search.SearchCollection", "-index", index, "-impact",
            "-pretokenized", "-topics", topics, "-topicreader", "TsvInt", "-output", run,
            "-hits", str(args.depth),
        ]  # fmt: skip
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        about[f"{kind}_ms"] = 1000 * (time.perf_counter() - started) / queries.shape[0]
        answers: Answers = [([], []) for _ in range(queries.shape[0])]
        for line in run.read_text().splitlines():
            query, _, name, _, score, _ = line.split()
            answers[int(query)][0].append(name)
            answers[int(query)][1].append(float(score) / args.quantise / factor)
        found[kind] = answers
    return found, about


def _repeated(export: ExportedDocuments, query: Any, factor: int) -> str:
    """A query's words, each as often as its weight times the factor says."""
    counts = np.rint(query.data * factor).astype(int)
    pairs = zip(query.indices.tolist(), counts.tolist(), strict=True)
    return " ".join(" ".join([export.words[term]] * count) for term, count in pairs if count)


def compared(table: np.ndarray, answers: Answers, depth: int) -> dict[str, float]:
    """Overlap with the exact best documents, and the largest relative difference of a score.

    Args:
      table: exact scores, [queries, documents].
      answers: of an engine.
      depth: documents that count.
    """
    overlaps, differences = [], [0.0]
    for scores, (ids, found) in zip(table, answers, strict=True):
        best = set(np.argsort(-scores, kind="stable")[:depth].tolist())
        numbers = np.array(ids, int)
        overlaps.append(len(best & set(numbers.tolist())) / depth)
        differences.append(float(np.max(np.abs(np.array(found) / scores[numbers] - 1), initial=0)))
    return {"overlap": float(np.mean(overlaps)), "score_difference": max(differences)}


ENGINES = {"qdrant": qdrant, "qdrant_edge": qdrant_edge, "lucene": lucene}


def measured(
    name: str, place: Path, args: argparse.Namespace, rows: Any, kinds: Kinds, tables: Kinds
) -> dict[str, float]:
    """What an engine costs and finds.

    Args:
      name: of the engine.
      place: for its files.
      args: the command line.
      rows: documents, csr_array [D, V] or embeddings [D, 1, N].
      kinds: of queries.
      tables: kind -> exact scores, [queries, documents].
    """
    dense = isinstance(rows, np.ndarray)
    kind = "dense" if dense else "lexical"
    (folder := place / f"{name}-{kind}").mkdir()
    terms = () if dense else [f"w{term}" for term in range(args.columns)]
    export = ExportedDocuments(batches(rows), terms, topology="sphere")
    found, about = ENGINES[name](folder, args, export, kinds)
    row = {f"{name}_{kind}_{key}": value for key, value in about.items()}
    for kind, answers in found.items():
        for key, value in compared(tables[kind], answers, args.depth).items():
            row[f"{name}_{kind}_{key}"] = value
    return row


def main() -> None:
    """Exports, indexes, searches and compares."""
    args = flags()
    documents = make_documents(args)
    asking = make_queries(args, documents)
    kinds = {kind: asking[kind] for kind in ("bag", "weighted")}
    rng = np.random.default_rng(2)
    embeddings, queries = (
        unit(rng.standard_normal((count, args.dim), np.float32))
        for count in (args.documents, args.queries)
    )
    tables = {kind: (rows @ documents.T).toarray() for kind, rows in kinds.items()}
    tables["dense"] = queries @ embeddings.T
    row: dict[str, Any] = {"benchmark": "engines", "machine": measure.machine()}
    row |= {"documents": args.documents, "entries_a_document": documents.nnz / args.documents}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        index, seconds = build(place / "ours", args, documents)
        row |= {"ours_index_seconds": seconds, "ours_index_bytes": size(index.folder)}

        def search(query: Any) -> tuple[list[str], list[float]]:
            numbers, scores = index.search(query, args.depth)
            return [str(number) for number in numbers[0]], scores[0].tolist()

        found, times = asked(kinds, search)
        row |= {f"ours_{key}": value for key, value in times.items()}
        for kind, answers in found.items():
            row[f"ours_{kind}_overlap"] = compared(tables[kind], answers, args.depth)["overlap"]
        for name in filter(None, args.engines.split(",")):
            row |= measured(name, place, args, documents, kinds, tables)
            if name in DENSE:
                rows = embeddings[:, None]
                row |= measured(name, place, args, rows, {"dense": queries}, tables)
    measure.report(row, args.json)


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
