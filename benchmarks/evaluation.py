"""Evaluation of many records: CPU seconds and memory beyond the embeddings.

    python -m benchmarks.evaluation --case=faq
    python -m benchmarks.evaluation --case=ranks --queries=2048 --documents=250000

`faq`: a twentieth of the questions and a twentieth of the answers are the same text. `caption`: a
twentieth of the captions are. `ranks`: every query has one positive; the peer is the search for the
best ten documents by sentence-transformers, where it is installed.
"""

import argparse
import resource
import time
from typing import Any

from benchmarks import measure

SHARE = 20  # one of as many records shares its text


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--case", choices=["faq", "caption", "ranks"], default="faq")
    parser.add_argument("--queries", type=int, default=10_000, help="records of faq and caption")
    parser.add_argument("--documents", type=int, default=250_000, help="of ranks")
    parser.add_argument("--dim", type=int, default=64)
    return parser.parse_args()


def contents(count: int, shares: bool) -> Any:
    """One value per record; the first twentieth of the records share one if told so."""
    import numpy as np

    from big_retrieval.data.duplicates import FieldContents

    values = np.arange(count)
    if shares:
        values = np.maximum(values - count // SHARE + 1, 0)
    return FieldContents(np.arange(count + 1), values)


def make_positives(args: argparse.Namespace) -> Any:
    """The positives of the case's queries."""
    import numpy as np

    from big_retrieval.evals.positives import Positives
    from big_retrieval.evals.shared_content import keys_of

    if args.case == "ranks":
        return Positives(np.arange(args.queries), np.arange(args.documents))
    fields = contents(args.queries, True), contents(args.queries, args.case == "faq")
    items = np.stack([np.arange(args.queries), np.zeros(args.queries, int)], axis=1)
    first, second = (keys.of(items)[0] for keys in keys_of(*fields))
    return Positives(first, second)


def peak() -> int:
    """The largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Ranks, and reports."""
    args = flags()
    import jax
    import numpy as np

    from big_retrieval import parallel
    from big_retrieval.config import Config
    from big_retrieval.config.topologies import topology_part
    from big_retrieval.evals.ranks import ranks
    from big_retrieval.inference.encoder import Encoder

    documents = args.documents if args.case == "ranks" else args.queries
    rng = np.random.default_rng(0)
    queries, corpus = (
        rng.standard_normal((count, 1, args.dim), np.float32) for count in (args.queries, documents)
    )
    for side in (queries, corpus):
        side /= np.linalg.norm(side, axis=-1, keepdims=True)
    encoder: Any = Encoder(None, parallel.make_mesh(Config(), jax.devices()[:1]), 64)  # type: ignore
    score = topology_part("sphere").score
    before, start, wall = peak(), time.process_time(), time.perf_counter()
    found = ranks(queries, corpus, make_positives(args), score=score, encoder=encoder, chunk=1024)
    row: dict[str, Any] = {
        "benchmark": "evaluation",
        "machine": measure.machine(),
        **{name: getattr(args, name) for name in ("case", "queries", "dim")},
        "documents": documents,
        "mean_rank": float(found.best.mean()),
        "cpu_seconds": time.process_time() - start,
        "wall_seconds": time.perf_counter() - wall,
        "more_bytes": peak() - before,
    }
    peer = measure.optional("sentence_transformers.util") if args.case == "ranks" else None
    torch = measure.optional("torch") if peer is not None else None
    if peer is not None and torch is not None:
        sides = [torch.from_numpy(side[:, 0]) for side in (queries, corpus)]
        before, start = peak(), time.process_time()
        peer.semantic_search(*sides, top_k=10, score_function=peer.dot_score)
        row["peer_cpu_seconds"] = time.process_time() - start
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
