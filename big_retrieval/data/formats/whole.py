"""Files that are read as a whole: JSON objects and lists, and qrels without a header line.

{query: {document: score}}            pairs, such as the *_gt_dev.json of Marqo-GS-10M
{id: {column: value}}, {id: "text"}   rows with an id, such as its corpus_1.json
[{column: value}, ...]                rows
query 0 document score                TREC's qrels; query document score, too
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import as_number
from big_retrieval.data.formats.lines import TEXT
from big_retrieval.data.formats.tables import ArrowTable, Table
from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular, read_text

JUDGED = (".qrels", ".qrel", ".trec", ".txt", ".tsv")  # endings of files without a header line
SPACE = " \t\n\r\v\f"  # white space of ASCII
_SPACES = re.compile(f"[{SPACE}]+")
TEXT_COLUMN = "text"  # of {id: "text"}


class Objects(Table):
    """Rows that were JSON objects of one file, held as JSON again: a fifth of Python's objects.

    Args:
      rows: the objects as JSON, [n].
      ids: their ids [n]; None: rows without ids.
      key: the column of the ids.
      path: the file.
    """

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
    return _objects(path, _load(path), key)


def _objects(path: Path, whole: Any, key: str) -> Objects:
    ids, rows = None, whole
    if isinstance(whole, dict):
        rows = [{TEXT_COLUMN: x} if isinstance(x, str) else x for x in whole.values()]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{path} holds neither rows by id, such as "
            '{"d1": {"title": "..."}} or {"d1": "..."}, nor a list of rows.'
        )
    if isinstance(whole, dict):
        for name, row in zip(whole, rows, strict=True):
            if str(row.get(key, name)) != name:
                raise UserError(
                    f"{path}, entry {name!r}: its {key!r} is {row[key]!r:.60}, not its id."
                )
        ids = pa.array(map(as_utf8, whole), TEXT)
    made = pa.array([json.dumps(row).encode() for row in rows], pa.large_binary())
    return Objects(made, ids, key, path.absolute())


def judged_objects(path: Path, query: str, document: str, score: str) -> Table:
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
        return _objects(path, whole, "")
    if not all(isinstance(judged, dict) for judged in whole.values()):
        raise UserError(f'{path} holds no qrels, such as {{"q1": {{"d1": 3, "d2": 1}}}}.')
    pairs = [
        (as_utf8(name), document and as_utf8(document), relevance)
        for name, judged in whole.items()
        for document, relevance in (judged.items() or [(None, 0)])
    ]
    queries, documents, scores = map(list, zip(*pairs, strict=True))
    place = partial(_entry, str(path.absolute()), pa.array(queries, TEXT))
    numbers = [as_number(each, score, place, i) for i, each in enumerate(scores)]
    table = _pairs_table((query, document, score), queries, documents, numbers)
    return ArrowTable(table, path.stem, place)


def judged_lines(path: Path, query: str, document: str, score: str) -> ArrowTable | None:
    """Pairs without a header line: `query document score`, or TREC's `query 0 document score`.

    Lines are cut as `split_columns` does.

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
    cells: list[list[str]] = [[], [], [], []]  # of all lines: the first, the second ... cells
    numbers: list[int] = []
    counts: Sequence[int] = (3, 4)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            here = split_columns(line, counts)
            if not numbers:
                if len(here) not in counts or not _is_number(here[-1]):
                    return None
                counts = (len(here),)
            if len(here) not in counts:
                raise UserError(
                    f"{path}, line {number} has {len(here)} cells; the first line has {counts[0]}."
                )
            numbers.append(number)
            for column, cell in zip(cells, here, strict=False):
                column.append(cell)
    place = partial(_line, str(path.absolute()), np.array(numbers, np.int64))
    scores = [as_number(x, score, place, i) for i, x in enumerate(cells[counts[0] - 1])]
    table = _pairs_table((query, document, score), cells[0], cells[counts[0] - 2], scores)
    return ArrowTable(table, path.stem, place)


def split_columns(line: str, counts: Collection[int]) -> list[str]:
    """Cuts a line of qrels or of a run file into its cells.

    Tabs separate if they give one of the expected counts: cells may then hold blanks. Otherwise any
    white space of ASCII separates, as in trec_eval; other white space is part of an id.

    Args:
      line: with or without its end.
      counts: expected numbers of cells.
    """
    if line.count("\t") + 1 in counts:
        return [cell.strip(SPACE) for cell in line.split("\t")]
    return _SPACES.split(line.strip(SPACE))


def _pairs_table(
    names: tuple[str, str, str], queries: list[Any], documents: list[Any], scores: list[float]
) -> pa.Table:
    if len(set(names)) < 3:
        said = " and ".join([", ".join(map(repr, names[:2])), repr(names[2])])
        raise UserError(
            f"the columns of query, document and score are {said}; give them three names."
        )
    columns = (pa.array(queries, TEXT), pa.array(documents, TEXT), pa.array(scores, pa.float64()))
    return pa.table(dict(zip(names, columns, strict=True)))


def _load(path: Path) -> Any:
    """A JSON object without duplicate keys, or a list.

    Raises:
      UserError: it is something else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Python would take the last one
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise UserError(f"{path}: the key {repeated!r} is there twice.")
        return found

    try:
        whole = json.loads(read_text(path, "utf-8-sig", "replace"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not JSON ({problem}).") from None
    if not isinstance(whole, dict | list) or not whole:
        raise UserError(f"{path} holds nothing, or neither an object nor a list of rows.")
    return whole


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(text) is not None
    return False


def _entry(path: str, queries: pa.Array, index: int) -> str:
    return f"{path}, query {queries[index].as_py()!r:.80}"


def _line(path: str, numbers: np.ndarray, index: int) -> str:
    return f"{path}, line {numbers[index]}"
