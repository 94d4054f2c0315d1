"""Files of rankings: the documents of each query, and its values of the metrics.

    rankings/<evaluator>/run.trec      TREC run with `depth` documents per query
                         queries.csv   one row per query: its id, its metrics, and the metrics of
                                       further weightings and modes ("bag/nDCG@10")

Only evaluators of judged documents write `run.trec`. An evaluator with two directions writes a
folder for each, such as `rankings/<evaluator>-image_to_text/`. In a classification, the queries
are the images. `big-retrieval compare` reads the files.
"""

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import RunWriter
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.regular import check_regular
from big_retrieval.io.space import reason
from big_retrieval.runtime.extras import Extras

if TYPE_CHECKING:
    from big_retrieval.evals.judged import Ranked

FOLDER, RUN, QUERIES = "rankings", "run.trec", "queries.csv"


def name_of(evaluator: str) -> str:
    """Returns the folder name of an evaluator such as `ranking/test`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", evaluator)


def id_of(source: RecordSource, index: int) -> str:
    """Returns the id of a query or a document; its index if the source has no ids."""
    read_id = getattr(source, "id", None)
    return str(index) if read_id is None else read_id(index)


class Rankings:
    """Writer of one evaluator's run and its metrics by query, on the first process.

    Args:
      folder: folder of the evaluator; None writes nothing.
      extras: turns the first error into a warning, after which nothing is written; None raises it.
    """

    def __init__(self, folder: Path | None, source: GradedPairs, extras: Extras | None = None):
        self._folder, self._source, self._extras = folder or Path(), source, extras
        self._files = contextlib.ExitStack()
        self._writes = folder is not None and jax.process_index() == 0
        self._queries: list[str] = []
        self._values: dict[str, list[float]] = {}

    def __enter__(self) -> Self:
        if self._writes:
            with self._trying():
                run = RunWriter(self._folder / RUN, name_of(self._folder.name))
                self._run = self._files.enter_context(run)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writes:
            with self._trying():
                self._files.__exit__(*error)
                if error[0] is None:
                    _write_table(self._folder / QUERIES, self._queries, self._values)

    def add_run(self, ranked: "Ranked") -> None:
        """Writes the documents of the next queries."""
        if not self._writes:
            return
        with self._trying():
            rows = zip(ranked.queries.tolist(), ranked.documents, ranked.scores, strict=True)
            for index, hits, scores in rows:
                query, present = id_of(self._source.queries, index), hits >= 0
                names = [id_of(self._source.documents, x) for x in hits[present].tolist()]
                self._run.add(query, names, scores[present])
                self._queries.append(query)

    def add_values(self, values: Mapping[str, np.ndarray]) -> None:
        """Adds the metrics [q] of the next queries, such as "bag/nDCG@10"."""
        for name, metric in values.items() if self._writes else ():
            self._values.setdefault(name, []).extend(metric.tolist())

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Removes the files after an error, which `extras` may turn into a warning."""
        with _warned(self._folder, self._extras):
            try:
                yield
            except BaseException as error:
                self._writes = False
                with contextlib.suppress(OSError):
                    self._files.__exit__(type(error), error, None)
                raise


def _warned(folder: Path, extras: Extras | None) -> contextlib.AbstractContextManager[Any]:
    """Turns errors of writing an evaluator's folder into warnings, if there are `extras`."""
    if extras is None:
        return contextlib.nullcontext()
    return extras(f"{folder.parent.name}/{folder.name}")


def write_values(
    folder: Path, queries: Sequence[str], values: Mapping[str, np.ndarray], extras: Extras | None
) -> None:
    """Writes the values [Q] by metric of all query ids [Q] of an evaluator without rankings.

    `extras` turns a file that cannot be written into a warning; None makes it an error.
    """
    if jax.process_index() == 0:
        with _warned(folder, extras):
            columns = {name: metric.tolist() for name, metric in values.items()}
            _write_table(folder / QUERIES, queries, columns)


def _write_table(path: Path, queries: Sequence[str], columns: Mapping[str, list[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(queries, *(map(repr, column) for column in columns.values()), strict=True)
    write_bytes(path, csv_bytes([("query", *columns), *rows]))


def csv_bytes(rows: Iterable[Sequence[Any]]) -> bytes:
    """Formats rows as a CSV file."""
    content = io.StringIO(newline="")
    csv.writer(content).writerows(rows)
    return content.getvalue().encode()


def read_values(path: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Reads the query ids [q] and their values, float64 [q] by metric, from a `queries.csv`."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        table = np.array([row[1:] for row in rows], np.float64).reshape(len(rows), -1)
    except (OSError, ValueError) as error:
        raise UserError(
            f"Cannot read {path} as a table of values by query: {reason(error)}."
        ) from None
    if header[:1] != ["query"] or table.shape[1] != len(header) - 1 or not rows:
        raise UserError(f"{path}: a table of values by query needs a column 'query' first.")
    ids = [row[0] for row in rows]
    bad = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(bad):
        raise UserError(
            f"{path}, row {bad[0] + 1}: a value of query {ids[bad[0]]!r} is not finite. "
            "Evaluate again."
        )
    if len(set(ids)) < len(ids):
        raise UserError(f"{path} has query {max(ids, key=ids.count)!r} twice. Evaluate again.")
    return ids, dict(zip(header[1:], table.T, strict=True))
