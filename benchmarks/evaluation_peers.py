"""Other libraries in benchmarks/evaluation.py, and what a part of a process costs."""

import contextlib
import importlib
import resource
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from benchmarks import measure


@contextlib.contextmanager
def measured(row: dict[str, Any], name: str = "") -> Iterator[None]:
    """Adds CPU and wall seconds, the peak of the process and its growth to a row."""
    before, start, wall = peak(), time.process_time(), time.perf_counter()
    yield
    row[f"{name}cpu_seconds"] = time.process_time() - start
    row[f"{name}wall_seconds"] = time.perf_counter() - wall
    row[f"{name}more_bytes"] = peak() - before
    row[f"{name}peak_bytes"] = peak()


def peak() -> int:
    """The largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def search(queries: Any, documents: Any, row: dict[str, Any]) -> None:
    """Measures searches for the best ten documents.

    Args:
      queries: float32 [Q, N].
      documents: float32 [D, N].
      row: gets what they cost.
    """
    if faiss := measure.optional("faiss"):
        with measured(row, "faiss_"):
            index = faiss.IndexFlatIP(documents.shape[1])
            index.add(documents)
            index.search(queries, 10)
    util, torch = measure.optional("sentence_transformers.util"), measure.optional("torch")
    if util is None or torch is None:
        return
    sides = [torch.from_numpy(side) for side in (queries, documents)]
    with measured(row, "semantic_search_"):
        util.semantic_search(*sides, top_k=10, score_function=util.dot_score)


def evaluate(queries: Any, documents: Any, row: dict[str, Any]) -> None:
    """Measures the evaluator of sentence-transformers; query i has the document i.

    Arguments as in `search`.
    """
    peer, torch = measure.optional("sentence_transformers"), measure.optional("torch")
    if peer is None or torch is None:
        return
    names = [str(number) for number in range(len(documents))]
    evaluation = importlib.import_module("sentence_transformers.evaluation")
    evaluator = evaluation.InformationRetrievalEvaluator(
        dict.fromkeys(names[: len(queries)], ""),
        dict.fromkeys(names, ""),
        {name: {name} for name in names[: len(queries)]},
        accuracy_at_k=[1, 10],
        precision_recall_at_k=[1, 10],
        map_at_k=[10],
        score_functions={"dot": peer.util.dot_score},
    )
    of_queries, of_documents = (torch.from_numpy(side) for side in (queries, documents))
    model: Any = SimpleNamespace(encode_query=lambda *args, **kwargs: of_queries)
    with measured(row, "evaluator_"):
        evaluator.compute_all_metrics(model, corpus_embeddings=of_documents)


def metrics(relevance: Any, values: Mapping[str, Any], row: dict[str, Any]) -> None:
    """Measures pytrec_eval.

    Args:
      relevance: of the ranked documents in rank order, [Q, depth].
      values: our metrics [Q] by the peer's names.
      row: gets what it costs, and the largest difference.
    """
    import numpy as np

    peer = measure.optional("pytrec_eval")
    if peer is None:
        return
    names = [f"d{number}" for number in range(relevance.shape[1])]
    run = {name: -float(place) for place, name in enumerate(names)}
    runs = {str(query): dict(run) for query in range(len(relevance))}
    qrels = {
        str(query): {names[place]: int(grades[place]) for place in np.flatnonzero(grades)}
        for query, grades in enumerate(relevance)
    }
    with measured(row, "pytrec_eval_"):
        found = peer.RelevanceEvaluator(qrels, {*values}).evaluate(runs)
    row["largest_difference"] = max(
        float(np.abs(x - [found[query][name] for query in runs]).max())
        for name, x in values.items()
    )
