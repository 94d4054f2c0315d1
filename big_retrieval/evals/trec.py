"""Run files of TREC: what was found for each query, a document a line.

    query Q0 document rank score tag

Ids hold no white space. trec_eval and its kin read the scores and not the ranks, and break ties by
the documents' ids.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.durable import publish
from big_retrieval.io.regular import check_regular

TAG = "big_retrieval"
Run = dict[str, list[tuple[str, float]]]


class RunWriter:
    """Writes a run file query by query; after an error there is none.

    Args:
      path: the file.
      tag: name of the run.

    Raises:
      UserError: the tag holds white space.
    """

    def __init__(self, path: Path, tag: str = TAG):
        self._path, self._tag = path, _word(tag, "the tag of a run")
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("w", encoding="utf-8")
        self._seen: set[str] = set()

    def add(self, query: str, documents: Sequence[str], scores: Sequence[float]) -> None:
        """Writes what was found for a query, best first; nothing found leaves no line.

        Raises:
          UserError: a query comes twice, or an id is empty or holds white space.
        """
        if query in self._seen:
            raise UserError(f"query {query!r} is there twice; give every query its own id.")
        self._seen.add(_word(query, "a query's id"))
        pairs = zip(documents, scores, strict=True)
        self._file.writelines(
            # 9 digits bring every float32 back
            f"{query} Q0 {_word(document, 'a document id')} {rank} {score:.9g} {self._tag}\n"
            for rank, (document, score) in enumerate(pairs, 1)
        )

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is None:
            publish(self._partial, self._path)
        else:
            self._partial.unlink(missing_ok=True)


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
      UserError: a query comes twice, or an id or the tag is empty or holds white space.
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
    path = Path(path)
    found: dict[str, dict[str, float]] = {}
    try:
        check_regular(path)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    _read_line(line, f"{path}, line {number}", found)
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8, so no run file.") from None
    return {q: sorted(each.items(), key=lambda pair: -pair[1]) for q, each in found.items()}


def _read_line(line: str, place: str, found: dict[str, dict[str, float]]) -> None:
    """Adds a line to what was found."""
    parts = line.split()
    if len(parts) != 6:
        raise UserError(
            f"{place} has {len(parts)} columns instead of 6 (query Q0 document rank score tag)."
        )
    query, _, document, rank, score, _ = parts
    try:
        value = float(score)
        int(rank)
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


def _word(text: str, what: str) -> str:
    """The text, if it is one word.

    Raises:
      UserError: it is not.
    """
    if not text or re.search(r"\s", text):
        raise UserError(f"{what} is {text!r}; a run file needs one word without white space.")
    return text
