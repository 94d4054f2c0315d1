"""What several fields cost: the training step of the multi-field model, and graded evaluation.

    python -m benchmarks.multi_field
    python -m benchmarks.multi_field --part=evaluation --queries=2000 --documents=100000

The step is that of configs/emoji_gcl.py (query; title and image as the document) on generated
judged scenes, against the same model with documents of an image alone and of a title alone. The
evaluation ranks random documents for random queries as `evals.ranking.Ranking` does, about
twenty random qrels a query; "top_k" is the device's part of it, "rank" adds ties, averages and
the lookup of relevance, "metrics" are nDCG, ERR and the others from these.
"""

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from benchmarks import measure
from benchmarks.train_step import compile_ours

FIELDS = ("multi", "image", "title")
VOCAB = 512  # word pieces of the generated texts, at most
JUDGED = 20  # documents of a query, on average


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--part", choices=["all", "step", "evaluation"], default="all")
    parser.add_argument("--batch", type=int, default=256, help="pairs of a step")
    parser.add_argument("--queries", type=int, default=1000, help="of the evaluation")
    parser.add_argument("--documents", type=int, default=100_000, help="of the evaluation")
    parser.add_argument("--dim", type=int, default=64, help="numbers of an embedding")
    parser.add_argument("--depth", type=int, default=1000, help="documents that are ranked")
    parser.add_argument("--chunk", type=int, default=256, help="queries scored at a time")
    return parser.parse_args()


def make_config(fields: str, batch: int) -> Any:
    """The config of the emoji with generated judged pairs as its data, and no evaluators."""
    from big_retrieval import config as configs
    from big_retrieval.config import recipe
    from configs import emoji_gcl

    c = emoji_gcl.get_config(f"fields={fields},batch={batch}")
    c.unlock()
    c.data, c.evals, c.tokenizer.vocab_size = recipe.entry(configs.GradedScenes()), {}, VOCAB
    c.labels.document, c.fields.query.column = "document_id", "query"
    return configs.load(c)


def make_step(config: Any) -> tuple[Any, Callable[[], Any]]:
    """The compiled step, and a call that takes it on the run's first batch again and again."""
    import jax

    from big_retrieval import parallel
    from big_retrieval.data.build import make_readers, make_source, make_tokenizer
    from big_retrieval.data.pipeline import train_batches

    source = make_source(config.data)
    tokenizer = make_tokenizer(config, source)
    parts, compiled = compile_ours(config, tokenizer.vocab_size)
    rows = parallel.local_rows(parts.mesh, config.batch_size)
    batches = train_batches(
        source,
        fields=make_readers(config, tokenizer),
        order=source.order(config.seed),
        batch_size=config.batch_size,
        rows=rows,
        start_batch=0,
        stop_batch=1,
        labels=config.labels,
    )
    batch = parallel.to_batch(next(batches), parts.mesh, config.batch_size)
    with parallel.use(parts.mesh):
        state = parts.draw()

    def step() -> float:
        nonlocal state
        state, metrics = compiled(state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    return compiled, step


def time_steps(args: argparse.Namespace) -> dict[str, Any]:
    """Steps of the three models in turn: CPU and wall seconds, temporary memory, the last loss."""
    steps: dict[str, Callable[[], Any]] = {}
    out: dict[str, Any] = {}
    for fields in FIELDS:
        compiled, steps[fields] = make_step(make_config(fields, args.batch))
        out[f"{fields}_temp_bytes"] = measure.temp_bytes(compiled)
    if args.compile_only:
        return out
    seconds = measure.interleaved(steps, args.rounds)
    for fields in FIELDS:
        out[f"{fields}_cpu_seconds"] = seconds[fields].cpu
        out[f"{fields}_wall_seconds"] = seconds[fields].wall
        out[f"{fields}_loss"] = steps[fields]()
    out["ratio_to_image"] = seconds["multi"].cpu / seconds["image"].cpu
    out["ratio_to_title"] = seconds["multi"].cpu / seconds["title"].cpu
    out["ratio_to_sum"] = seconds["multi"].cpu / (seconds["image"].cpu + seconds["title"].cpu)
    return out


class _Judged:
    """Random qrels of records without content, which are never read."""

    def __init__(self, queries: int, documents: int) -> None:
        import numpy as np

        from big_retrieval.data.judged.qrels import Qrels

        rng = np.random.default_rng(0)
        counts = np.minimum(rng.poisson(JUDGED - 1, queries) + 1, documents)
        judged = [rng.choice(documents, count, replace=False) for count in counts]
        scores = rng.integers(1, 101, counts.sum()).astype(np.float64)
        numbers = np.repeat(np.arange(queries, dtype=np.int32), counts)
        self.queries, self.documents = range(queries), range(documents)
        self.qrels = Qrels(numbers, np.concatenate(judged).astype(np.int32), scores)


def make_calls(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The parts of an evaluation of random embeddings, each a call that returns when it is done."""
    import jax
    import numpy as np

    from big_retrieval import config as configs
    from big_retrieval import parallel
    from big_retrieval.config import ImageField, TextField
    from big_retrieval.config.topologies import topology_part
    from big_retrieval.evals.encoding import EncodedFields
    from big_retrieval.evals.evaluators import EvaluatorContext
    from big_retrieval.evals.ranks import DocumentScorer
    from big_retrieval.inference.encoder import Encoder
    from big_retrieval.models.towers import make_model

    config = make_config("image", args.batch)
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    encoder = Encoder(make_model(config, VOCAB), mesh, args.batch)  # encodes nothing here
    topology = topology_part("sphere")
    source: Any = _Judged(args.queries, args.documents)
    evaluator = configs.Ranking(depth=args.depth, chunk=args.chunk)
    fields = {"query": TextField(), "image": ImageField()}
    readers: Any = {name: SimpleNamespace(field=field) for name, field in fields.items()}
    context = EvaluatorContext("ranking", source, readers, topology, encoder)

    def draw(field: str, count: int, seed: int) -> EncodedFields:
        embeddings = np.random.default_rng(seed).standard_normal((count, 1, args.dim), np.float32)
        embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
        return EncodedFields({field: embeddings}, {field: np.ones(count, bool)})

    queries, documents = draw("query", args.queries, 1), draw("image", args.documents, 2)
    embeddings = queries.embeddings["query"]

    def rank() -> list[Any]:
        copied = {"image": documents.embeddings["image"].copy()}  # it is overwritten
        given = EncodedFields(copied, documents.present)
        return list(evaluator.rank(context, embeddings, queries, given, {"image": 1.0}))

    def top_k() -> Any:
        how: Any = {"score": topology.score, "encoder": encoder, "chunk": args.chunk}
        return DocumentScorer(documents.embeddings["image"], **how).best(embeddings, args.depth)

    ranked = rank()
    values = evaluator.judgements(context).values
    return {"top_k": top_k, "rank": rank, "metrics": lambda: [values(r) for r in ranked]}


def time_evaluation(args: argparse.Namespace) -> dict[str, Any]:
    """Queries a second of the parts, by CPU seconds and by the clock."""
    out: dict[str, Any] = {}
    for name, seconds in measure.interleaved(make_calls(args), args.rounds).items():
        out[f"{name}_cpu_seconds"] = seconds.cpu
        out[f"{name}_queries_a_cpu_second"] = args.queries / max(seconds.cpu, 1e-9)
        out[f"{name}_queries_a_second"] = args.queries / max(seconds.wall, 1e-9)
    return out


def main() -> None:
    """Times the steps in turn, then the parts of the evaluation."""
    args = flags()
    names = ("batch", "queries", "documents", "dim", "depth", "chunk")
    row: dict[str, Any] = {
        "benchmark": "multi_field",
        "machine": measure.machine(),
        **{name: getattr(args, name) for name in names},
    }
    if args.part != "evaluation":
        row |= time_steps(args)
    if args.part != "step" and not args.compile_only:
        row |= time_evaluation(args)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
