"""Rankings as files: what was found for each query, and each query's values of the metrics.

    rankings/<evaluator>/run.trec      a TREC run, of `depth` documents a query
                         queries.csv   a row for each query that was asked: its id, its metrics,
                                       and those of further weightings and modes ("bag/nDCG@10")

Evaluators that rank no judged documents write `queries.csv` alone; those that search in two
directions write one for each, `rankings/<evaluator>-image_to_text/` and so on. The queries of a
classification are its images.

`big-retrieval compare` reads them again.
"""

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import PartialFile, RunWriter
from big_retrieval.io.regular import check_regular
from big_retrieval.runtime.extras import Extras

FOLDER, RUN, QUERIES = "rankings", "run.trec", "queries.csv"


def name_of(evaluator: str) -> str:
    """The folder of an evaluator such as `ranking/test`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", evaluator)


def id_of(source: RecordSource, number: int) -> str:
    """The id of a query or a document; its number where the source knows none."""
    known = getattr(source, "id", None)
    return str(number) if known is None else known(number)


class Rankings:
    """Writes the run of one evaluator and its queries' metrics, some queries at a time.

    Args:
      folder: of the evaluator.
      source: knows the ids of queries and documents.
      extras: says the first error, from which on nothing more is written and the evaluation goes
        on; None: the error is raised.
    """

    def __init__(self, folder: Path, source: JudgedSource, extras: Extras | None = None):
        self._folder, self._source, self._extras = folder, source, extras
        self._files = contextlib.ExitStack()
        self._writes = False
        self._queries: list[str] = []
        self._values: dict[str, list[float]] = {}

    def __enter__(self) -> Self:
        with self._trying():
            self._run = self._files.enter_context(
                RunWriter(self._folder / RUN, name_of(self._folder.name))
            )
            self._writes = True
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writes:
            with self._trying():
                self._files.__exit__(*error)
                if error[0] is None:
                    columns = {name: np.array(each) for name, each in self._values.items()}
                    _write_table(self._folder / QUERIES, self._queries, columns)

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
        if not self._writes:
            return
        self.add_values(values)
        with self._trying():
            for place, number in enumerate(queries.tolist()):
                query, present = id_of(self._source.queries, number), found[place] >= 0
                names = [id_of(self._source.documents, x) for x in found[place][present].tolist()]
                self._run.add(query, names, scores[place][present])
                self._queries.append(query)

    def add_values(self, values: Mapping[str, np.ndarray]) -> None:
        """Metrics of the next queries, such as "bag/nDCG@10" of a mode that has no run of its own.

        Args:
          values: metric -> value of each query, [q].
        """
        for name, each in values.items():
            self._values.setdefault(name, []).extend(each.tolist())

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Removes what was written after an error, which `extras` may turn into a warning."""
        name = f"{self._folder.parent.name}/{self._folder.name}"
        with contextlib.nullcontext() if self._extras is None else self._extras(name):
            try:
                yield
            except BaseException as problem:
                self._writes = False
                with contextlib.suppress(OSError):
                    self._files.__exit__(type(problem), problem, None)
                raise


def write_values(
    folder: Path, queries: Sequence[str], values: Mapping[str, np.ndarray], extras: Extras | None
) -> None:
    """Writes the values of all queries where there is no ranking to be written with them.

    Args:
      folder: of the evaluator, or of one of its directions.
      queries: their ids, [Q].
      values: metric -> value of each query, [Q].
      extras: makes a file that cannot be written a warning; None: that is an error.
    """
    if jax.process_index() != 0:
        return
    name = f"{folder.parent.name}/{folder.name}"
    with contextlib.nullcontext() if extras is None else extras(name):
        _write_table(folder / QUERIES, queries, values)


def _write_table(path: Path, queries: Sequence[str], values: Mapping[str, np.ndarray]) -> None:
    """A row for each query: its id, and its values of all metrics."""
    with PartialFile(path) as table:
        rows = csv.writer(table.file)
        rows.writerow(["query", *values])
        numbers = zip(*(each.tolist() for each in values.values()), strict=True)
        rows.writerows(
            [query, *map(repr, row)] for query, row in zip(queries, numbers, strict=True)
        )


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
    ids = [row[0] for row in rows]
    for number, row in enumerate(table, 1):
        if not np.isfinite(row).all():
            raise UserError(
                f"{path}, row {number}: a value of query {ids[number - 1]!r} is not finite; "
                "evaluate again."
            )
    if len(set(ids)) < len(ids):
        raise UserError(f"{path} has query {max(ids, key=ids.count)!r} twice; evaluate again.")
    return ids, dict(zip(header[1:], table.T, strict=True))
