"""Files that are read as a whole: JSON objects and lists, and qrels without a header line.

{query: {document: score}}            pairs, such as the *_gt_dev.json of Marqo-GS-10M
{id: {column: value}}, {id: "text"}   rows with an id, such as its corpus_1.json
[{column: value}, ...]                rows
query 0 document score                TREC's qrels; query document score, too
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import TEXT, as_number
from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular, read_text

JUDGED = (".qrels", ".qrel", ".trec", ".txt", ".tsv")  # endings of files without a header line
TEXT_COLUMN = "text"  # of {id: "text"}


class ArrowColumns:
    """Columns at hand, as Arrow arrays.

    Args:
      table: the columns.
      name: of the table.
      place: where a row stands; a function that can be pickled.
    """

    def __init__(self, table: pa.Table, name: str, place: Callable[[int], str]):
        self._table, self.name, self.place = table, name, place
        self.columns = frozenset(table.column_names)

    def __len__(self) -> int:
        return self._table.num_rows

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The values of a row."""
        wanted = self.columns if columns is None else self.columns & set(columns)
        return {key: self._table[key][index].as_py() for key in wanted}

    def column(self, name: str) -> pa.ChunkedArray | None:
        """All values of a column; None where there is no such column."""
        return self._table[name] if name in self.columns else None


class Objects:
    """Rows that were JSON objects of one file, held as JSON again: a fifth of Python's objects.

    Args:
      rows: the objects as JSON, [n].
      ids: their ids [n]; None: rows without ids.
      key: the column of the ids.
      path: the file.
    """

    columns = None

    def __init__(self, rows: pa.Array, ids: pa.Array | None, key: str, path: Path):
        self._rows, self._ids, self._key, self._path = rows, ids, key, path
        self.name = path.stem

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        """The file and the id, or the number of the entry, from 1."""
        which = index + 1 if self._ids is None else repr(self._ids[index].as_py())
        return f"{self._path}, entry {which}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """An object, with its id in the column of the ids."""
        row = json.loads(self._rows[index].as_py())
        return row if self._ids is None else {**row, self._key: self._ids[index].as_py()}


def objects(path: Path, key: str) -> Objects:
    """The rows of a JSON file: {id: {column: value}}, {id: "text"} or [{column: value}, ...].

    Args:
      path: the file, UTF-8.
      key: the column that ids get; texts get `TEXT_COLUMN`.

    Raises:
      UserError: it is no such file, has an id twice, or a row has another value for its id.
    """
    whole = _load(path)
    rows = whole
    if isinstance(whole, dict):
        rows = [{TEXT_COLUMN: x} if isinstance(x, str) else x for x in whole.values()]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{path} holds neither rows by id, such as "
            '{"d1": {"title": "..."}} or {"d1": "..."}, nor a list of rows.'
        )
    made = pa.array([json.dumps(row).encode() for row in rows], pa.large_binary())
    if not isinstance(whole, dict):
        return Objects(made, None, key, path.absolute())
    for name, row in zip(whole, rows, strict=True):
        if str(row.get(key, name)) != name:
            raise UserError(f"{path}, entry {name!r}: its {key!r} is {row[key]!r:.60}, not its id.")
    ids = pa.array([as_utf8(name) for name in whole], TEXT)
    return Objects(made, ids, key, path.absolute())


def judged_objects(path: Path, query: str, document: str, score: str) -> ArrowColumns | Objects:
    """The pairs of a JSON file: {query: {document: score}} or [{column: value}, ...].

    Args:
      path: the file, UTF-8.
      query: the column that queries' ids get.
      document: the column that documents' ids get; null for a query without documents.
      score: the column that scores get.

    Raises:
      UserError: it is no such file, or has a query twice, or a document of a query.
    """
    whole = _load(path)
    if isinstance(whole, list):
        return objects(path, "")
    if not all(isinstance(judged, dict) for judged in whole.values()):
        raise UserError(f'{path} holds no qrels, such as {{"q1": {{"d1": 3, "d2": 1}}}}.')
    queries: list[str] = []
    documents: list[str | None] = []
    scores: list[Any] = []
    for name, judged in whole.items():
        queries += [as_utf8(name)] * max(1, len(judged))
        documents += [as_utf8(each) for each in judged] or [None]
        scores += judged.values() or [0]
    place = partial(_entry, str(path.absolute()), pa.array(queries, TEXT))
    numbers = [as_number(each, score, place, i) for i, each in enumerate(scores)]
    table = _pairs_table(query, document, score, queries, documents, numbers)
    return ArrowColumns(table, path.stem, place)


def judged_lines(path: Path, query: str, document: str, score: str) -> ArrowColumns | None:
    """Pairs without a header line: `query document score`, or TREC's `query 0 document score`.

    Cells are separated by tabs where the first line has one, else by blanks.

    Args:
      path: the file, UTF-8; empty lines are skipped.
      query: the column that queries' ids get.
      document: the column that documents' ids get.
      score: the column that scores get.

    Returns:
      The pairs; None where the first line is none, such as a header.

    Raises:
      UserError: a line has another number of cells, or a score that is no number.
    """
    check_regular(path)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    cells = _cells(first, "\t" in first)
    if len(cells) not in (3, 4) or not _is_number(cells[-1]):
        return None
    found: tuple[list[str], list[str], list[float]] = ([], [], [])
    numbers: list[int] = []
    place = partial(_line, str(path.absolute()), numbers)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            here = _cells(line, "\t" in first)
            if len(here) != len(cells):
                raise UserError(
                    f"{path}, line {number} has {len(here)} cells; the first line has {len(cells)}."
                )
            numbers.append(number)
            found[0].append(here[0])
            found[1].append(here[-2])
            found[2].append(as_number(here[-1], score, place, len(numbers) - 1))
    table = _pairs_table(query, document, score, *found)
    lines = np.array(numbers, np.int64)
    return ArrowColumns(table, path.stem, partial(_line, str(path.absolute()), lines))


def _pairs_table(
    query: str, document: str, score: str, queries: list[Any], documents: list[Any], scores: Any
) -> pa.Table:
    if len({query, document, score}) < 3:
        raise UserError(
            f"the columns of query, document and score are {query!r}, {document!r} and {score!r}; "
            "give them three names."
        )
    return pa.table(
        {query: pa.array(queries, TEXT), document: pa.array(documents, TEXT), score: scores}
    )


def _load(path: Path) -> Any:
    """A JSON object without double keys, or a list.

    Raises:
      UserError: it is something else.
    """
    try:
        text = read_text(path, "utf-8-sig", "replace")
        whole = json.loads(text, object_pairs_hook=_unique)
    except _Twice as problem:
        raise UserError(f"{path}: the key {problem.args[0]!r} is there twice.") from None
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not JSON ({problem}).") from None
    if not isinstance(whole, Mapping | list) or not whole:
        raise UserError(f"{path} holds nothing, or neither an object nor a list of rows.")
    return whole


class _Twice(Exception):
    """A key that a JSON object has twice, of which Python would take the last."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _cells(line: str, tabs: bool) -> list[str]:
    return [cell.strip() for cell in line.rstrip("\r\n").split("\t")] if tabs else line.split()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _entry(path: str, queries: pa.Array, index: int) -> str:
    return f"{path}, query {queries[index].as_py()!r:.80}"


def _line(path: str, numbers: Any, index: int) -> str:
    return f"{path}, line {numbers[index]}"
