"""Mines hard negatives into a file; repeating a stopped command resumes it."""

import dataclasses
import functools
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config, schema
from big_retrieval.data.formats.tables import digest_of
from big_retrieval.io.resumable_file import AppendedFile
from big_retrieval.mining.choice import MiningOptions, QueryResults, choose_negatives
from big_retrieval.mining.searchers import CandidateSearcher
from big_retrieval.mining.task import Task
from big_retrieval.runtime import locks
from big_retrieval.runtime.messages import count_of
from big_retrieval.runtime.progress import progress_bar

log = logging.getLogger(__name__)
QUERIES = 1024  # queries per search


def mine(
    task: Task,
    searcher: CandidateSearcher,
    config: Config,
    options: MiningOptions,
    depth: int,
    out: Path,
) -> None:
    """Writes the hard negatives of every query that has a relevant document, in DPR's form.

    Args:
      depth: number of documents to search for each query.
    """
    queries = np.array([n for n, positives in enumerate(task.positives) if positives], np.int64)
    log.info(f"{count_of(len(queries), 'query')}, {count_of(len(task.documents), 'document')}")
    settings = {
        "searcher": searcher.fingerprint,
        "config": schema.to_plain(config),
        "data": data_fingerprints(task),
        "depth": depth,
        **dataclasses.asdict(options),
    }
    with AppendedFile(out, settings) as file:
        finished = int(file.noted.get("queries", 0))
        counts = Counter({int(n): times for n, times in file.noted.get("counts", {}).items()})
        dropped = Counter[str](file.noted.get("dropped", {}))
        if finished:
            log.info(f"resuming after the {count_of(finished, 'query')} in {out}.partial")
        with progress_bar("queries", len(queries) - finished) as progress:
            for start in range(finished, len(queries), QUERIES):
                block = queries[start : start + QUERIES]
                rows = [*_rows(task, searcher, block, options, depth, dropped)]
                counts.update(len(row["hard_negative_ctxs"]) for row in rows)
                locks.check()
                lines = [(json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows]
                state = {"queries": start + len(block), "counts": counts, "dropped": dropped}
                file.add(lines, state)
                progress.update(len(block))
        locks.check()
        file.finish()
    total = sum(count * times for count, times in counts.items())
    mean = total / max(1, counts.total())
    without = count_of(counts[0], "query")
    log.info(f"{count_of(total, 'negative')}, {mean:.1f} a query; {without} without negatives")
    if dropped:
        reasons = (f"{times:,} x {reason}" for reason, times in dropped.most_common())
        log.info(f"skipped: {'; '.join(reasons)}")
    log.info(f"written to {out}; to train on it: {' '.join(training_flags(config, out))}")


def training_flags(config: Config, out: Path) -> list[str]:
    """Returns the flags that make a config train on the written file."""
    keys = ["data.type=dpr", f"data.path={out}", f"negatives.count={config.negatives.count or 1}"]
    for name, field in config.encoded.items():
        column = "query" if field.side == "query" else "text"
        if field.modality == "text" and field.column != column:
            keys.append(f"fields.{name}.column={column}")
    keys += [f"labels.{name}=" for name in ("query", "score") if getattr(config.labels, name)]
    return [f"--config.{key}" for key in keys]


def _rows(
    task: Task,
    searcher: CandidateSearcher,
    queries: np.ndarray,
    options: MiningOptions,
    depth: int,
    dropped: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yields the rows of queries in DPR's form; counts skipped queries and documents by reason."""
    documents, scores, best_positive = searcher.search(queries, min(depth, len(task.documents)))
    for row, query in enumerate(queries.tolist()):
        question, answers = task.question(query), task.answers(query)
        if not question:
            dropped["query without a text"] += 1
            continue
        is_present = documents[row] >= 0
        results = QueryResults(
            documents[row][is_present].tolist(),
            scores[row][is_present].tolist(),
            task.positives_of_text[query],
            float(best_positive[row]),
        )
        itself = functools.partial(task.itself, query)
        negatives = choose_negatives(results, options, task.whole_text, answers, dropped, itself)
        yield {
            "question": question,
            "answers": list(answers),
            "positive_ctxs": [_passage(task, document) for document in task.positives[query]],
            "negative_ctxs": [],
            "hard_negative_ctxs": [
                {**_passage(task, hit.document), "score": round(hit.score, 6), "rank": hit.rank}
                for hit in negatives
            ],
        }


def _passage(task: Task, document: int) -> dict[str, Any]:
    title, text = task.text(document)
    title, text = (title, text) if text else ("", title)  # DPR's form needs a text
    return {"title": title, "text": text, "passage_id": task.document_id(document)}


def data_fingerprints(task: Task) -> dict[str, str]:
    """Returns the fingerprints of the queries, of the documents and of the relevant pairs."""
    queries, documents = range(len(task.queries)), range(len(task.documents))
    return {
        "queries": task.queries.fingerprint or digest_of(map(task.question, queries)),
        "documents": task.documents.fingerprint or digest_of(map(task.text, documents)),
        "right": digest_of(map(list, task.positives)),
    }
