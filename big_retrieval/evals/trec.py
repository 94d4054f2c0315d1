"""Files of TREC: runs (what was found for each query, a document a line) and qrels.

    query Q0 document rank score tag       a run
    query 0 document relevance             qrels; BEIR's are tab-separated, with a header line

Ids hold no white space. trec_eval and its kin read the scores and not the ranks, and break ties by
the documents' ids.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from big_retrieval.data.judged.qrels import DuplicatePolicy
from big_retrieval.errors import UserError
from big_retrieval.io.durable import publish
from big_retrieval.io.regular import check_regular

TAG = "big_retrieval"
Run = dict[str, list[tuple[str, float]]]  # query -> documents and scores, best first
FileQrels = dict[str, dict[str, float]]  # query -> document -> relevance
_COMBINE = {"max": max, "min": min, "mean": np.mean, "first": lambda values: values[0]}


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
        self._tag, self._seen = _word(tag, "the tag of a run"), set[str]()
        super().__init__(path)

    def add(self, query: str, documents: Sequence[str], scores: Sequence[float]) -> None:
        """Writes what was found for a query, best first; nothing found leaves no line.

        Raises:
          UserError: a query comes twice, or an id is empty or holds white space.
        """
        if query in self._seen:
            raise UserError(f"query {query!r} is there twice; give every query its own id.")
        self._seen.add(_word(query, "a query's id"))
        pairs = zip(documents, scores, strict=True)
        self.file.writelines(
            # 9 digits bring every float32 back
            f"{query} Q0 {_word(document, 'a document id')} {rank} {score:.9g} {self._tag}\n"
            for rank, (document, score) in enumerate(pairs, 1)
        )


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
    found: dict[str, dict[str, float]] = {}
    for place, line in _lines(Path(path)):
        parts = line.split()
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
    """The qrels of a file: TREC's qrels, three columns, or BEIR's with their header line.

    A relevance below 0 counts 0.

    Args:
      path: the file.
      duplicates: which relevance counts of a pair that is judged twice; "refuse": different ones
        are an error.

    Raises:
      UserError: it is no such file, or judges a pair twice with different relevance.
    """
    found: dict[str, dict[str, list[float]]] = {}
    columns, tabs = 0, False
    for place, line in _lines(path, errors="replace"):
        tabs = tabs or (not columns and "\t" in line)
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t" if tabs else None)]
        header = not columns and len(cells) in (3, 4) and not _is_number(cells[-1])
        if len(cells) not in ((columns,) if columns else (3, 4)) or (header and not tabs):
            raise UserError(
                f"{path} holds no qrels: its lines need query, document and relevance, or TREC's "
                f"query, 0, document and relevance; {place} has {len(cells)} columns."
            )
        columns = len(cells)
        if header:
            continue
        if not _is_number(cells[-1]) or not math.isfinite(float(cells[-1])):
            raise UserError(f"{place}: the relevance {cells[-1]!r} must be a finite number.")
        relevance = max(0.0, float(cells[-1]))
        values = found.setdefault(cells[0], {}).setdefault(cells[-2], [])
        if duplicates == "refuse" and any(value != relevance for value in values):
            raise UserError(
                f"{place}: this pair has the relevance {relevance:g}, but {values[0]:g} before; "
                "keep one of them, or say which counts, as in --duplicates=max."
            )
        values.append(relevance)
    combine = _COMBINE.get(duplicates, max)  # of values that are all the same
    return {
        query: {document: float(combine(values)) for document, values in judged.items()}
        for query, judged in found.items()
    }


def _lines(path: Path, errors: str = "strict") -> Iterator[tuple[str, str]]:
    """Lines that are not empty, with their place; a UserError where the file cannot be read."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", errors=errors) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", line
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8, so no run file.") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _word(text: str, what: str) -> str:
    """The text, if it is one word.

    Raises:
      UserError: it is not.
    """
    if not text or re.search(r"\s", text):
        raise UserError(f"{what} is {text!r}; a run file needs one word without white space.")
    return text
