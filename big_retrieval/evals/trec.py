"""Files of TREC: runs (what was found for each query, a document a line) and qrels.

    query Q0 document rank score tag       a run
    query 0 document relevance             qrels; BEIR's are tab-separated, with a header line

White space separates. A line with a blank in an id is separated by tabs instead; ids are written as
they are. trec_eval and its kin read the scores and not the ranks, and break ties by the documents'
ids, so that of equal scores the later ones are written as the next lower float32.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from big_retrieval.data.formats.arrow import read_csv
from big_retrieval.data.formats.columns import encode, scan
from big_retrieval.data.formats.whole import SPACE, judged_lines, split_columns
from big_retrieval.data.judged.qrels import DuplicatePolicy, check_scores, distinct
from big_retrieval.errors import UserError
from big_retrieval.io.durable import publish
from big_retrieval.io.regular import check_regular

TAG = "big_retrieval"
Run = dict[str, list[tuple[str, float]]]  # query -> documents and scores, best first
FileQrels = dict[str, dict[str, float]]  # query -> document -> relevance


class PartialFile:
    """A text file that gets its name when its context ends well; after an error there is none.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        self._path = path
        # Of this process only: a run that trains may be evaluated into the same folder.
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self._partial.open("w", encoding="utf-8", newline="")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.file.close()
        if kind is None:
            publish(self._partial, self._path)
        else:
            self._partial.unlink(missing_ok=True)


class RunWriter(PartialFile):
    """Writes a run file query by query.

    Args:
      path: the file.
      tag: name of the run.

    Raises:
      UserError: the tag holds white space.
    """

    def __init__(self, path: Path, tag: str = TAG):
        if not tag or re.search(r"\s", tag):
            raise UserError(f"the tag of a run is {tag!r}; give one word without white space.")
        self._tag, self._seen = tag, set[str]()
        super().__init__(path)

    def add(self, query: str, documents: Sequence[str], scores: Sequence[float]) -> None:
        """Writes what was found for a query, best first; nothing found leaves no line.

        Raises:
          UserError: a query comes twice, or a line cannot hold an id.
        """
        if query in self._seen:
            raise UserError(f"query {query!r} is there twice; give every query its own id.")
        self._seen.add(_check_id(query, "a query's id"))
        pairs = zip(documents, _falling(scores), strict=True)
        for rank, (document, score) in enumerate(pairs, 1):
            _check_id(document, f"a document id of query {query!r}")
            # 9 digits bring every float32 back
            cells = (query, "Q0", document, str(rank), f"{score:.9g}", self._tag)
            blank = any(x in query + document for x in SPACE)
            self.file.write(("\t" if blank else " ").join(cells) + "\n")


def write_run(
    path: str | Path,
    query_ids: Sequence[str],
    found_ids: Sequence[Sequence[str]],
    scores: Sequence[Sequence[float]] | np.ndarray,
    tag: str = TAG,
) -> None:
    """Writes a run file.

    Args:
      path: the file.
      query_ids: of q queries.
      found_ids: for each query the ids of the documents found, best first.
      scores: for each query their scores.
      tag: name of the run.

    Raises:
      UserError: a query comes twice, or a line cannot hold an id or the tag.
    """
    with RunWriter(Path(path), tag) as writer:
        for query, documents, values in zip(query_ids, found_ids, scores, strict=True):
            writer.add(query, documents, values)


def read_run(path: str | Path) -> Run:
    """Reads a run file.

    Returns:
      Query id -> (document id, score), best score first, of equal ones in the order of the file.

    Raises:
      UserError: it cannot be read; a line has not six columns, a rank that is no whole number or a
        score that is no number; or a query has a document twice. The line is named.
    """
    found: dict[str, dict[str, float]] = {}
    for place, line in _lines(Path(path)):
        parts = split_columns(line, (6,))
        if len(parts) != 6:
            raise UserError(
                f"{place} has {len(parts)} columns instead of 6 (query Q0 document rank score tag)."
            )
        query, _, document, rank, score, _ = parts
        try:
            int(rank)
            value = float(score)
        except ValueError:
            raise UserError(
                f"{place}: rank {rank!r} and score {score!r} must be a whole number and a number."
            ) from None
        if math.isnan(value):
            raise UserError(f"{place}: the score is not a number.")
        documents = found.setdefault(query, {})
        if document in documents:
            raise UserError(f"{place}: query {query!r} has document {document!r} already.")
        documents[document] = value
    return {q: sorted(each.items(), key=lambda pair: -pair[1]) for q, each in found.items()}


def read_qrels(path: Path, duplicates: DuplicatePolicy = "refuse") -> FileQrels:
    """Reads TREC's qrels, three columns, or BEIR's with their header line.

    They are read as by a source of judged pairs, so that evaluations read the same. A relevance
    below 0 counts 0.

    Args:
      path: the file.
      duplicates: which relevance counts of a pair that is judged twice; "refuse": different ones
        are an error.

    Raises:
      UserError: it is no such file, or judges a pair twice with different relevance.
    """
    try:
        table = judged_lines(path, "query", "document", "relevance") or read_csv(path, "\t")
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    if len(table.names) not in (3, 4):
        raise UserError(
            f"{path} holds no qrels: its lines need query, document and relevance, or TREC's "
            f"query, 0, document and relevance; the first one has {len(table.names)} columns."
        )
    names = table.names[0], table.names[-2]
    found = scan(table, names, (table.names[-1],))
    ids = [found.texts[name] for name in names]
    for name, each in zip(names, ids, strict=True):
        if each.null_count:
            first = int(np.flatnonzero(np.asarray(each.is_null()))[0])
            raise UserError(f"{table.place(first)}: there is no {name}; give every pair its ids.")
    relevance = np.maximum(found.numbers[table.names[-1]], 0)  # NaN stays
    check_scores(relevance, table.names[-1], table.place)
    (query, queries), (document, documents) = map(encode, ids)
    first, relevance = distinct(query, document, relevance, table.place, duplicates)
    out: FileQrels = {}
    known = queries.to_pylist(), documents.to_pylist()
    for q, d, value in zip(query[first], document[first], relevance[first], strict=True):
        out.setdefault(known[0][q], {})[known[1][d]] = float(value)
    return out


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that are not empty, with their place; a UserError where the file cannot be read."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip(SPACE):
                    yield f"{path}, line {number}", line
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8, so no run file.") from None


def _check_id(text: str, label: str) -> str:
    """The text, if a line of a run file can hold it.

    Raises:
      UserError: it is empty, begins or ends with white space, or has a tab or line end.
    """
    if not text or text != text.strip(SPACE) or re.search(r"[\t\n\r]", text):
        raise UserError(
            f"{label} is {text!r}; a run file cannot hold an empty id, white space around one, "
            "tabs or line ends. Give it another id."
        )
    return text


def _falling(scores: Sequence[float] | np.ndarray) -> list[float]:
    """The scores of a ranking as float32, best first, and ties below the one before them."""
    given = np.array(scores, np.float32)
    values = given.copy()
    for place in range(1, len(given)) if (given[1:] == given[:-1]).any() else ():
        if given[place] <= given[place - 1]:
            below = np.nextafter(values[place - 1], np.float32(-np.inf))
            values[place] = min(given[place], below)
    return values.tolist()
