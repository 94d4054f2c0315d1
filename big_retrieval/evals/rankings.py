"""Rankings as files: what was found for each query, and each query's values of the metrics.

    rankings/<evaluator>/run.trec      a TREC run, of `depth` documents a query
                         queries.csv   a row for each query that was asked: its id, its metrics

`big-retrieval compare` reads them again.
"""

import contextlib
import csv
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import RunWriter
from big_retrieval.io.durable import publish
from big_retrieval.io.regular import check_regular
from big_retrieval.runtime.extras import Extras

FOLDER, RUN, QUERIES = "rankings", "run.trec", "queries.csv"


def name_of(evaluator: str) -> str:
    """The folder of an evaluator such as `ranking/test`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", evaluator)


class Rankings:
    """Writes the rankings of one evaluator, some queries at a time.

    Both files have their names only when they are whole.

    Args:
      folder: of the evaluator.
      source: knows the ids of queries and documents.
    """

    def __init__(self, folder: Path, source: JudgedSource):
        self._folder, self._source = folder, source
        self._run = RunWriter(folder / RUN, name_of(folder.name))
        # Of this process only: a run that trains may be evaluated into the same folder.
        self._partial = folder / f"{QUERIES}.{os.getpid()}.partial"

    def __enter__(self) -> "Rankings":
        self._file = self._partial.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)
        self._run.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._run.__exit__(kind, error, at)
        self._file.close()
        if kind is None:
            publish(self._partial, self._folder / QUERIES)
        else:
            self._partial.unlink(missing_ok=True)

    def add(
        self,
        queries: np.ndarray,
        found: np.ndarray,
        scores: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> None:
        """Writes some queries.

        Args:
          queries: their numbers, [q].
          found: numbers of the documents, best first, [q, depth]; -1: none.
          scores: of these, [q, depth].
          values: metric -> value of each query, [q].
        """
        if self._file.tell() == 0:
            self._rows.writerow(["query", *values])
        for place, number in enumerate(queries.tolist()):
            query, present = id_of(self._source.queries, number), found[place] >= 0
            documents = [id_of(self._source.documents, x) for x in found[place][present].tolist()]
            self._run.add(
                _word(query), list(map(_word, documents)), scores[place][present].tolist()
            )
            self._rows.writerow([query, *(repr(float(each[place])) for each in values.values())])


class OptionalRankings:
    """Rankings that the evaluation does without from the first error on.

    Args:
      folder: of the evaluator.
      source: knows the ids of queries and documents.
      extras: says the error.
    """

    def __init__(self, folder: Path, source: JudgedSource, extras: Extras):
        self._folder, self._source, self._extras = folder, source, extras
        self._name = f"{folder.parent.name}/{folder.name}"
        self._rankings: Rankings | None = None

    def __enter__(self) -> "OptionalRankings":
        with self._extras(self._name):
            self._rankings = Rankings(self._folder, self._source).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        rankings, self._rankings = self._rankings, None
        if rankings is not None:
            with self._extras(self._name):
                rankings.__exit__(kind, error, at)

    def add(
        self,
        queries: np.ndarray,
        found: np.ndarray,
        scores: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> None:
        """Writes some queries, see `Rankings.add`."""
        if self._rankings is None:
            return
        with self._extras(self._name):
            try:
                self._rankings.add(queries, found, scores, values)
            except Exception as problem:
                broken, self._rankings = self._rankings, None
                with contextlib.suppress(OSError):
                    broken.__exit__(type(problem), problem, None)
                raise


def open_rankings(
    folder: Path, source: JudgedSource, extras: Extras | None
) -> Rankings | OptionalRankings:
    """Rankings of one evaluator, without which the evaluation goes on where `extras` are given."""
    return Rankings(folder, source) if extras is None else OptionalRankings(folder, source, extras)


def id_of(source: RecordSource, number: int) -> str:
    """The id of a query or a document; its number where the source knows none."""
    known = getattr(source, "id", None)
    return str(number) if known is None else known(number)


def read_values(path: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """The queries of a file `queries.csv` and their values.

    Returns:
      The ids [q], and metric -> float64 [q].

    Raises:
      UserError: it is no such file.
    """
    try:
        check_regular(path)
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        table = np.array([row[1:] for row in rows], np.float64).reshape(len(rows), -1)
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} is no table of values by query ({problem}).") from None
    if header[:1] != ["query"] or table.shape[1] != len(header) - 1 or not rows:
        raise UserError(f"{path} is no table of values by query: it needs a column 'query' first.")
    return [row[0] for row in rows], dict(zip(header[1:], table.T, strict=True))


def _word(text: str) -> str:
    """An id without white space, which run files cannot hold: it is written as in addresses."""
    return re.sub(r"\s", lambda found: f"%{ord(found[0]):02X}", text)
