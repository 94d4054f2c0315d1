"""Mines hard negatives into a file; a command that was stopped resumes when repeated."""

import dataclasses
import functools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config, schema
from big_retrieval.data.formats.tables import digest_of
from big_retrieval.data.sources import fingerprint_of
from big_retrieval.io.appended import AppendedFile
from big_retrieval.mining.choice import MiningOptions, QueryResults, choose
from big_retrieval.mining.searchers import CandidateSearcher
from big_retrieval.mining.task import Task
from big_retrieval.runtime import locks
from big_retrieval.runtime.progress import progress_bar

log = logging.getLogger(__name__)
QUERIES = 1024  # searched at a time


def mine(
    task: Task,
    searcher: CandidateSearcher,
    config: Config,
    options: MiningOptions,
    depth: int,
    out: Path,
) -> None:
    """Writes the hard negatives of every query that has a right document.

    Args:
      task: queries and documents.
      searcher: finds documents.
      config: has the fields.
      options: which of the found documents become negatives.
      depth: how many documents are searched for a query.
      out: the file, in DPR's form.
    """
    asked = np.array([n for n, right in enumerate(task.right) if right], np.int64)
    log.info(f"{len(asked):,} queries, {len(task.documents):,} documents")
    determines = {
        "searcher": searcher.fingerprint,
        "config": schema.to_plain(config),
        "data": data_fingerprints(task),
        "depth": depth,
        **dataclasses.asdict(options),
    }
    with Output(out, determines) as file:
        if file.done:
            log.info(f"resuming after the {file.done:,} queries in {out}.partial")
        progress = progress_bar("queries", len(asked) - file.done)
        for start in range(file.done, len(asked), QUERIES):
            part = asked[start : start + QUERIES]
            file.write(_rows(task, searcher, part, options, depth, file.dropped), len(part))
            progress.update(len(part))
        progress.close()
        locks.check()
        file.finish()
    counts, made = file.counts, sum(number * count for number, count in file.counts.items())
    each = made / max(1, counts.total())
    log.info(f"{made:,} negatives, {each:.1f} a query; {counts[0]:,} queries without negatives")
    if file.dropped:
        reasons = (f"{count:,} x {why}" for why, count in file.dropped.most_common())
        log.info(f"skipped: {'; '.join(reasons)}")
    log.info(f"written to {out}; to train on it: {' '.join(training(config, out))}")


def training(config: Config, out: Path) -> list[str]:
    """The flags that make a config train on the written file.

    Args:
      config: of the training; its fields may read other columns.
      out: the file.
    """
    names = ["type=dpr", f"path={out}"]
    given = [*(f"data.{each}" for each in names), f"negatives.count={config.negatives.count or 1}"]
    for name, field in config.encoded.items():
        column = "query" if field.side == "query" else "text"
        if field.modality == "text" and field.column != column:
            given.append(f"fields.{name}.column={column}")
    given += [f"labels.{name}=" for name in ("query", "score") if getattr(config.labels, name)]
    return [f"--config.{each}" for each in given]


def _rows(
    task: Task,
    searcher: CandidateSearcher,
    asked: np.ndarray,
    options: MiningOptions,
    depth: int,
    dropped: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yields the rows of some queries; `dropped` counts what is left out, by reason."""
    found, scores, best_right = searcher.search(asked, min(depth, len(task.documents)))
    for place, number in enumerate(asked.tolist()):
        question, answers = task.question(number), task.answers(number)
        if not question:
            dropped["query without a text"] += 1
            continue
        present = found[place] >= 0
        results = QueryResults(
            number,
            found[place][present].tolist(),
            scores[place][present].tolist(),
            task.right_of_text[number],
            float(best_right[place]),
        )
        itself = functools.partial(task.itself, number)
        chosen = choose(results, options, task.whole_text, answers, dropped, itself)
        yield {
            "question": question,
            "answers": list(answers),
            "positive_ctxs": [_passage(task, document) for document in task.right[number]],
            "negative_ctxs": [],
            "hard_negative_ctxs": [
                {**_passage(task, each.document), "score": round(each.score, 6), "rank": each.rank}
                for each in chosen
            ],
        }


def _passage(task: Task, document: int) -> dict[str, Any]:
    title, text = task.text(document)
    title, text = (title, text) if text else ("", title)  # DPR's form needs a text
    return {"title": title, "text": text, "passage_id": task.document_id(document)}


class Output(AppendedFile):
    """Writes the rows of some queries at a time.

    Attributes:
      done: queries whose rows are written.
      counts: number of negatives -> how many queries have it.
      dropped: what was left out, by reason.
    """

    def __init__(self, path: Path, determines: Mapping[str, Any]):
        super().__init__(path, determines)
        self.done = int(self.noted.get("queries", 0))
        self.counts = Counter({int(n): count for n, count in self.noted.get("counts", {}).items()})
        self.dropped = Counter(self.noted.get("dropped", {}))

    def write(self, rows: Iterable[Mapping[str, Any]], queries: int) -> None:
        """Writes rows, and then notes how far the file goes.

        Args:
          rows: in DPR's form.
          queries: how many queries the rows are of; a query may have no row.
        """
        locks.check()
        lines = []
        for row in rows:
            self.counts[len(row["hard_negative_ctxs"])] += 1
            lines.append((json.dumps(row, ensure_ascii=False) + "\n").encode())
        self.done += queries
        self.add(lines, {"queries": self.done, "counts": self.counts, "dropped": self.dropped})


def data_fingerprints(task: Task) -> dict[str, str]:
    """Returns the fingerprints of the queries, of the documents, and of which are right."""
    queries, documents = range(len(task.queries)), range(len(task.documents))
    return {
        "queries": fingerprint_of(task.queries) or digest_of(map(task.question, queries)),
        "documents": fingerprint_of(task.documents) or digest_of(map(task.text, documents)),
        "right": digest_of(map(list, task.right)),
    }
