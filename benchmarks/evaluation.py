"""Evaluation of many records: CPU seconds and memory beyond the inputs, beside other libraries.

    python -m benchmarks.evaluation --case=faq
    python -m benchmarks.evaluation --case=ranks --queries=2048 --documents=250000

- `faq`: a twentieth of the questions are the same text, and so is a twentieth of the answers.
- `caption`: a twentieth of the captions are the same text.
- `ranks`: every query has one positive, as in the evaluator of sentence-transformers.
- `judged`: one query has 30,000 judged documents, the others five; metrics, and the task of mining.
- `ties`: the best documents where every document occurs twice, and where none does.
- `metrics`: metrics of given rankings; the peer is pytrec_eval.
- `zeroshot`: images (queries) are classified by a prompt per class (document).
- `documents`: a ranking evaluator; `copies` is its memory in embeddings of the documents.

Peers of the first three are the searches for the best ten documents by sentence-transformers and
faiss. Peers are measured where they are installed. Memory is the peak of the process so far.
"""

import argparse
from types import SimpleNamespace
from typing import Any

from benchmarks import evaluation_peers, measure
from benchmarks.evaluation_peers import measured

SHARE = 20  # one of as many records shares its text
HEAD = 30_000  # judged documents of the first query in `judged`
JUDGED = 5  # and of the others
DEPTH = 1000  # ranked documents per query
# of graded_metrics -> of pytrec_eval
METRICS = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG": "ndcg",
    "MAP": "map",
    "MRR": "recip_rank",
    "R@10": "recall_10",
    "P@10": "P_10",
}


def flags() -> argparse.Namespace:
    """The command line; sizes by default as in docs/BENCHMARKS.md."""
    parser = measure.parser(__doc__)
    parser.add_argument("--case", choices=[*CASES], default="faq")
    parser.add_argument("--queries", type=int, help="or records; default: by case")
    parser.add_argument("--documents", type=int, help="default: by case, or the records")
    parser.add_argument("--dim", type=int, default=64)
    args = parser.parse_args()
    _, queries, documents = CASES[args.case]
    args.queries = args.queries or queries
    args.documents = args.documents or documents or args.queries
    return args


def make_encoder() -> Any:
    """An encoder without a model, that knows the device."""
    import jax

    from big_retrieval import parallel
    from big_retrieval.config import Config
    from big_retrieval.inference.encoder import Encoder

    return Encoder(None, parallel.make_mesh(Config(), jax.devices()[:1]), 64)  # type: ignore


def sphere() -> Any:
    """The score of the topology."""
    from big_retrieval.config.topologies import topology_part

    return topology_part("sphere").score


def embeddings(*counts: int, dim: int) -> list[Any]:
    """Random embeddings [count, 1, dim] of norm 1."""
    import numpy as np

    rng = np.random.default_rng(0)
    sides = [rng.standard_normal((count, 1, dim), np.float32) for count in counts]
    for side in sides:
        side /= np.linalg.norm(side, axis=-1, keepdims=True)
    return sides


def contents(count: int, first: int | None) -> Any:
    """One value per record; a twentieth of the records, from `first` on, share one (None: none)."""
    import numpy as np

    from big_retrieval.data.duplicates import FieldContents

    values = np.arange(count)
    if first is not None:
        values[first : first + count // SHARE] = first
    return FieldContents(np.arange(count + 1), np.unique(values, return_inverse=True)[1])


def make_positives(args: argparse.Namespace) -> Any:
    """The positives of the case's queries."""
    import numpy as np

    from big_retrieval.evals.positives import Positives, keys_of

    if args.case == "ranks":
        return Positives(np.arange(args.queries), np.arange(args.documents))
    other = args.queries // SHARE if args.case == "faq" else None
    fields = contents(args.queries, 0), contents(args.queries, other)
    items = np.stack([np.arange(args.queries), np.zeros(args.queries, int)], axis=1)
    first, second = (keys.lookup(items)[0] for keys in keys_of(*fields))
    return Positives(first, second)


def rank(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Ranks of the positives: `faq`, `caption` and `ranks`."""
    from big_retrieval.evals.ranks import ranks

    queries, documents = embeddings(args.queries, args.documents, dim=args.dim)
    encoder, score = make_encoder(), sphere()
    with measured(row):
        positives = make_positives(args)
        found = ranks(queries, documents, positives, score=score, encoder=encoder, chunk=1024)
    row["mean_rank"] = float(found.best.mean())
    evaluation_peers.search(queries[:, 0], documents[:, 0], row)
    if args.case == "ranks":
        evaluation_peers.evaluate(queries[:, 0], documents[:, 0], row)


def judged(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Metrics and the mining task of judged queries, one with many documents."""
    import numpy as np

    from big_retrieval.evals.graded import graded_metrics
    from big_retrieval.evals.judged import relevance_of
    from big_retrieval.mining.task import judged_task

    rng = np.random.default_rng(0)
    qrels = make_qrels(args.queries, args.documents, rng)
    hits = rng.integers(args.documents, size=(args.queries, DEPTH), dtype=np.int32)
    with measured(row):
        for queries in qrels.blocks(np.arange(args.queries)):
            documents, relevance = qrels.for_queries(queries)
            graded_metrics(relevance_of(hits[queries], documents, relevance), relevance, [*METRICS])
    source: Any = SimpleNamespace(queries=range(args.queries), documents=(), qrels=qrels)
    reader: Any = None
    with measured(row, "task_"):
        judged_task(source, reader, reader)


def make_qrels(queries: int, documents: int, rng: Any) -> Any:
    """Judged pairs: `HEAD` of the first query, `JUDGED` of each other one."""
    import numpy as np

    from big_retrieval.data.judged.qrels import Qrels

    query = np.repeat(np.arange(queries, dtype=np.int32), [HEAD] + [JUDGED] * (queries - 1))
    document = np.arange(len(query), dtype=np.int32) % documents
    return Qrels(query, document, rng.integers(1, 101, len(query)).astype(float))


def ties(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """The best documents, the less relevant first, with and without documents that occur twice."""
    import numpy as np

    from big_retrieval.evals.ranks import DocumentScorer

    queries, documents = embeddings(args.queries, args.documents, dim=args.dim)
    encoder, score = make_encoder(), sphere()

    def relevance(query: int) -> Any:
        out = np.zeros(args.documents)
        out[query] = 1.0
        return out

    twice = np.repeat(documents[: -(-args.documents // 2)], 2, axis=0)[: args.documents]
    for name, side in (("no_ties_", documents), ("", twice)):
        scorer = DocumentScorer(side, score=score, encoder=encoder, chunk=256)
        scorer.best(queries[:256], DEPTH, relevance)  # compiles
        with measured(row, name):
            scorer.best(queries, DEPTH, relevance)
    row["ratio"] = row["cpu_seconds"] / row["no_ties_cpu_seconds"]


def metrics(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Metrics of rankings of `--documents` each, about twenty of them with a relevance to 3."""
    import numpy as np

    from big_retrieval.evals.graded import graded_metrics

    rng = np.random.default_rng(0)
    relevance = rng.integers(1, 4, size=(args.queries, args.documents)).astype(float)
    relevance[rng.random(relevance.shape) > 20 / args.documents] = 0
    with measured(row):
        values = graded_metrics(relevance, relevance, [*METRICS])
    evaluation_peers.metrics(relevance, {METRICS[name]: x for name, x in values.items()}, row)


def zeroshot(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Ranks of the classes of images (queries), with a prompt per class (document)."""
    import numpy as np

    from big_retrieval.config.topologies import topology_part
    from big_retrieval.evals.class_scores import class_scores
    from big_retrieval.evals.ranks import class_ranks

    images, prompts = embeddings(args.queries, args.documents, dim=args.dim)
    labels, ranks = np.arange(args.queries) % args.documents, []
    how: Any = {"topology": topology_part("sphere"), "encoder": make_encoder()}
    with measured(row):
        for rows, scores in class_scores(images, prompts, args.documents, **how):
            ranks.append(class_ranks(scores, labels[rows]))
    row["mean_rank"] = float(np.concatenate(ranks).mean())


def documents(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """A ranking evaluator whose model is one matrix: copies of the embeddings of documents."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from big_retrieval import config as configs
    from big_retrieval import parallel
    from big_retrieval.batch import Reps
    from big_retrieval.config.topologies import topology_part
    from big_retrieval.data.fields.texts import TextReader
    from big_retrieval.data.judged.qrels import Qrels
    from big_retrieval.data.sources import TextRecords
    from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
    from big_retrieval.evals.evaluators import EvaluatorContext
    from big_retrieval.inference.encoder import Encoder

    digits = [f"{start}{digit}" for start in ("", "##") for digit in range(10)]
    tokenizer = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *digits])
    fields = {
        "query": configs.TextField(column="text", length=8),
        "document": configs.TextField(column="text", length=8, side="document"),
    }
    mesh = parallel.make_mesh(configs.Config(), jax.devices()[:1])
    matrix = np.random.default_rng(0).standard_normal((8, args.dim), np.float32)
    topology = topology_part("sphere")

    def embed(_: Any, inputs: Any) -> Reps:
        ids = {name: x["ids"].astype(jnp.float32) for name, x in inputs.items()}
        raw = {name: jnp.sin(x @ matrix[: x.shape[1]])[:, None] for name, x in ids.items()}
        return Reps({name: topology.project(x) for name, x in raw.items()})

    model: Any = SimpleNamespace(fields=fields, terms={}, apply=embed)
    side = {
        name: TextRecords([str(i) for i in range(count)], column="text")
        for name, count in (("queries", args.queries), ("documents", args.documents))
    }
    first = np.arange(args.queries)
    source = SimpleNamespace(**side, qrels=Qrels(first, first, np.ones(args.queries)))
    readers = {name: TextReader(field, tokenizer) for name, field in fields.items()}
    context = EvaluatorContext("x", source, readers, topology, Encoder(model, mesh, 1024))
    with measured(row):
        row["MRR"] = configs.Ranking().run(context, {})["MRR"]
    row["copies"] = row["more_bytes"] / (4 * args.documents * args.dim)


# name -> the function, and how many queries and documents by default (0: as many)
CASES = {
    "faq": (rank, 10_000, 0),
    "caption": (rank, 100_000, 0),
    "ranks": (rank, 2_048, 250_000),
    "judged": (judged, 4_096, 250_000),
    "ties": (ties, 1_000, 100_000),
    "metrics": (metrics, 5_000, 1_000),
    "zeroshot": (zeroshot, 20_000, 20_000),
    "documents": (documents, 256, 200_000),
}


def main() -> None:
    """Measures a case, and reports."""
    args = flags()
    row: dict[str, Any] = {"benchmark": "evaluation", "machine": measure.machine()}
    row |= {name: getattr(args, name) for name in ("case", "queries", "documents", "dim")}
    CASES[args.case][0](args, row)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
