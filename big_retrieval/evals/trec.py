"""TREC files: runs (one line per ranked document) and qrels, and their metrics as in trec_eval.

    query Q0 document rank score tag       run
    query 0 document relevance             qrels; BEIR's are tab-separated, with a header line

White space separates columns; only tabs do if an id has a blank. Ids are not escaped.
trec_eval reads the scores, not the ranks, and breaks ties by document id. The writer therefore
lowers equal scores to the next float32 below the preceding score.
"""

import io
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from big_retrieval.data.formats.columns import encode, scan
from big_retrieval.data.judged.qrels import DuplicatePolicy, check_scores, distinct
from big_retrieval.data.stores.headerless import SPACE, qrels_reader, split_columns
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.io.durable import publish
from big_retrieval.io.regular import read_text
from big_retrieval.io.space import reason

log = logging.getLogger(__name__)
TAG = "big_retrieval"
Run = dict[str, list[tuple[str, float]]]  # query -> documents and scores, best first
FileQrels = dict[str, dict[str, float]]  # query -> document -> relevance
Values = tuple[list[str], Mapping[str, np.ndarray]]  # query ids [q], values [q] by metric


class RunWriter:
    """Writer of a run file, query by query.

    The file gets its name when the context ends; an error removes it.
    """

    def __init__(self, path: Path, tag: str = TAG):
        if not tag or re.search(r"\s", tag):
            raise UserError(f"the tag of a run is {tag!r}; give one word without white space.")
        self._path, self._tag, self._seen = path, tag, set[str]()
        # With the process id: an evaluation may write to the folder of a run that trains.
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("w", encoding="utf-8", newline="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._file.close()
        if error_type is None:
            publish(self._partial, self._path)
        else:
            self._partial.unlink(missing_ok=True)

    def add(self, query: str, documents: Sequence[str], scores: Sequence[float]) -> None:
        """Writes the documents of a query, best first; a query without documents has no line."""
        if query in self._seen:
            raise UserError(f"Duplicate query {query!r}. Give every query a different id.")
        self._seen.add(_check_id(query, "a query's id"))
        pairs = zip(documents, _falling(scores), strict=True)
        for rank, (document, score) in enumerate(pairs, 1):
            _check_id(document, f"a document id of query {query!r}")
            # 9 digits are enough for every float32.
            cells = (query, "Q0", document, str(rank), f"{score:.9g}", self._tag)
            blank = any(x in query + document for x in SPACE)
            self._file.write(("\t" if blank else " ").join(cells) + "\n")


def read_run(path: str | Path) -> Run:
    """Reads a run file.

    Returns:
      (document id, score) by query id, best score first, equal scores in the order of the file.
    """
    try:
        lines = io.StringIO(read_text(path, "utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the run file {path}: {reason(error)}.") from None
    run: dict[str, dict[str, float]] = {}
    for line_number, line in enumerate(lines, 1):
        if not line.strip(SPACE):
            continue
        location = f"{path}, line {line_number}"
        columns = split_columns(line, (6,))
        if len(columns) != 6:
            raise UserError(
                f"{location} has {len(columns)} columns instead of 6 (query Q0 document rank score "
                "tag)."
            )
        query, _, document, rank, text, _ = columns
        try:
            int(rank)
            score = float(text)
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise UserError(
                f"{location}: the rank is {rank!r} and the score {text!r}; they must be an integer "
                "and a number."
            )
        documents = run.setdefault(query, {})
        if document in documents:
            raise UserError(
                f"{location}: duplicate document {document!r} for query {query!r}. Remove one of "
                "the two lines."
            )
        documents[document] = score
    return {q: sorted(scores.items(), key=lambda pair: -pair[1]) for q, scores in run.items()}


def read_qrels(path: Path, duplicates: DuplicatePolicy = "refuse") -> FileQrels:
    """Reads TREC's or BEIR's qrels as a source of judged pairs does; negative relevance becomes 0.

    `duplicates` selects the relevance of a pair that is judged twice.
    """
    try:
        table = open_store([path], qrels_reader(path, ("query", "document", "relevance")))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    if len(table.names) not in (3, 4):
        raise UserError(
            f"{path} has {len(table.names)} columns; qrels have query, document and relevance, or "
            "TREC's query, 0, document and relevance."
        )
    *names, score_name = table.names[0], *table.names[-2:]
    columns = scan(table, names, (score_name,))
    ids = [columns.texts[name] for name in names]
    for name, values in zip(names, ids, strict=True):
        if values.null_count:
            first = int(np.flatnonzero(np.asarray(values.is_null()))[0])
            raise UserError(f"{table.place(first)}: {name} is missing. Give every pair its ids.")
    relevance = np.maximum(columns.numbers[score_name], 0)  # NaN stays
    check_scores(relevance, score_name, table.place)
    (query, queries), (document, documents) = map(encode, ids)
    first, relevance = distinct(query, document, relevance, table.place, duplicates)
    out: FileQrels = {}
    query_ids, document_ids = queries.to_pylist(), documents.to_pylist()
    for q, d, value in zip(query[first], document[first], relevance[first], strict=True):
        out.setdefault(query_ids[q], {})[document_ids[d]] = float(value)
    return out


def _check_id(text: str, label: str) -> str:
    """Returns an id; raises a UserError if a run file cannot hold it."""
    if not text or text != text.strip(SPACE) or re.search(r"[\t\n\r]", text):
        raise UserError(
            f"{label} is {text!r}. In a run file, an id cannot be empty, start or end with white "
            "space, or contain tabs or line ends."
        )
    return text


def _falling(scores: Sequence[float] | np.ndarray) -> list[float]:
    """Converts the scores of a ranking to float32, and lowers ties below the preceding score."""
    original = np.array(scores, np.float32)
    values = original.copy()
    for rank in range(1, len(values)) if (original[1:] == original[:-1]).any() else ():
        if original[rank] <= original[rank - 1]:
            below = np.nextafter(values[rank - 1], np.float32(-np.inf))
            values[rank] = min(original[rank], below)
    return values.tolist()


def values_of_run(run: Run, qrels: FileQrels, metrics: Sequence[str]) -> Values:
    """Computes metrics of every judged query; a query that is not in the run counts 0.

    Documents are sorted as in trec_eval: by score in float32, among equal scores by descending id.

    Returns:
      Query ids [q], and float64 [q] by metric.
    """
    ranked = {document for ranking in run.values() for document, _ in ranking}
    judged = {document for relevance in qrels.values() for document in relevance}
    if ranked and not ranked & judged:
        log.warning(
            "no document of the run is judged. Compare the ids: the run has such as "
            f"{min(ranked)!r}, the qrels such as {min(judged)!r}"
        )
    if not qrels.keys() & run.keys():
        raise UserError("no query of the run is judged: run and qrels have different query ids.")
    queries = sorted(qrels)
    if lacking := len(qrels.keys() - run.keys()):
        log.info(f"{lacking:,} of {len(qrels):,} judged queries have no results and count 0")
    if ignored := len(run.keys() - qrels.keys()):
        log.info(f"{ignored:,} of {len(run):,} queries of the run are not judged and not counted")
    values = [_values(run.get(query, []), qrels[query], metrics) for query in queries]
    return queries, {name: np.array([metric[name] for metric in values]) for name in metrics}


def _values(
    ranking: Sequence[tuple[str, float]], judged: dict[str, float], metrics: Sequence[str]
) -> dict[str, float]:
    relevance = np.array([[judged.get(document, 0.0) for document, _ in ranking]])  # [1, n]
    with np.errstate(over="ignore"):  # too large scores become infinite, as in trec_eval
        scores = np.array([[score for _, score in ranking]]).astype(np.float32)
    if ranking:
        ids = np.array([[document for document, _ in ranking]])
        relevance = np.take_along_axis(relevance, order(scores, relevance, ids), 1)
    all_judged = np.array([list(judged.values())])
    values = graded_metrics(relevance.reshape(1, -1), all_judged, metrics)
    return {name: float(value[0]) for name, value in values.items()}
