"""Readers of JSON: an object per line, a list of objects, or one object of rows or of qrels.

    {"column": value}                       per line
    [{"column": value}, ...]                rows
    {id: {"column": value}}, {id: "text"}   rows with an id, such as corpus_1.json of Marqo-GS-10M
    {query: {document: score}}              qrels, such as gt_dev.json of Marqo-GS-10M

A file that begins with [ is read as a list.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.data.stores.blocks import FileRow, Reader, RowBlock, RowBuffer, in_blocks
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular, read_text

BOM = b"\xef\xbb\xbf"
WINDOW = 2**24  # characters of a list that are decoded together
LARGEST_ENTRY = 2**28  # characters of an entry of a list
TEXT_COLUMN = "text"  # of {id: "text"}
BLANKS = " \t\n\r"  # white space of JSON
_BLANKS = re.compile(f"[{BLANKS}]*")
_scan: Any = json.JSONDecoder().scan_once  # type: ignore


@in_blocks
def read_json_lines(path: Path) -> Iterator[FileRow]:
    """Yields the objects of a file with one JSON object per line, UTF-8; skips empty lines."""
    with path.open("rb") as file:
        for line_number, line in enumerate(file, 1):
            if not line.isspace():
                row, reason = parse_object(line)
                yield row, line_number, reason, len(line)


@in_blocks
def read_json_list(path: Path) -> Iterator[FileRow]:
    """Yields the objects of a JSON list, UTF-8; raises a UserError if it is cut short."""
    entry_number = 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        try:
            for entry_number, (value, size) in enumerate(_entries(file), 1):
                row, reason = checked_object(value)
                yield row, entry_number, reason, size
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path} is not a whole JSON list: see what follows entry "
                f"{entry_number:,} ({error})."
            ) from None


@in_blocks
def read_json_object(path: Path, key: str) -> Iterator[FileRow]:
    """Yields the rows of an object: {id: {column: value}} or {id: "text"}.

    Args:
      key: column of the ids; texts have the column `TEXT_COLUMN`.
    """
    entries = _load(path)
    size = path.stat().st_size // len(entries)
    for entry_number, (name, value) in enumerate(entries.items(), 1):
        row, reason = checked_object({TEXT_COLUMN: value} if isinstance(value, str) else value)
        if str(row.get(key, name)) != name:
            reason = f"its {key!r} is {row[key]!r:.60}, not its id {name!r:.60}"
        yield {} if reason else {**row, key: as_utf8(name)}, entry_number, reason, size


def read_qrels_object(path: Path, query: str, document: str, score: str) -> Iterator[RowBlock]:
    """Yields pairs of {query: {document: score}}; an empty query gives a row without a document."""
    entries = _load(path)
    buffer, size = RowBuffer(path), path.stat().st_size // len(entries)
    for entry_number, (name, scores) in enumerate(entries.items(), 1):
        if isinstance(scores, dict):
            for key, value in scores.items() or [(None, 0)]:
                row = {query: as_utf8(name), document: key and as_utf8(key), score: value}
                buffer.add(row, entry_number, None, 0)
        else:
            buffer.add({}, entry_number, 'not documents with scores, such as {"d1": 3, "d2": 1}', 0)
        buffer.size += size
        if buffer.is_full():
            yield buffer.take()
    yield buffer.take()


JSON_LINES = Reader(read_json_lines, "line")
JSON_LIST = Reader(read_json_list, "row")


def json_reader(path: Path) -> Reader:
    """Returns the reader of a file: a list of objects, or an object per line."""
    check_regular(path)
    with path.open("rb") as file:
        start = file.read(1024).removeprefix(BOM).lstrip()
    return JSON_LIST if start.startswith(b"[") else JSON_LINES


def json_object_reader(path: Path, key: str) -> Reader:
    """Returns the reader for a JSON list of rows, or for {id: row}; `key` is the column of ids."""
    if json_reader(path) is JSON_LIST:
        return JSON_LIST
    return Reader(read_json_object, "row", key=key, options={"key": key})


def json_qrels_reader(path: Path, query: str, document: str, score: str) -> Reader:
    """Returns the reader for a JSON list of pairs, or for an object of qrels."""
    if json_reader(path) is JSON_LIST:
        return JSON_LIST
    names = {"query": query, "document": document, "score": score}
    return Reader(read_qrels_object, "query", key=query, options=names)


def parse_object(content: bytes) -> tuple[Record, str | None]:
    """Returns a JSON object, or an empty one and the reason why it cannot be read."""
    value, reason = parse_json(content.decode("utf-8", "replace").removeprefix("\ufeff"))
    return ({}, reason) if reason else checked_object(value)


def parse_json(content: str | bytes) -> tuple[Any, str | None]:
    """Returns a JSON value, or None and the reason why it cannot be read."""
    try:
        return _parsed(content), None
    except ValueError as error:
        return None, f"not JSON ({error})"
    except RecursionError:
        return None, "JSON that is nested too deeply"


def checked_object(value: Any) -> tuple[Record, str | None]:
    """Returns a JSON object, or an empty one and the reason why the value is not a row."""
    if not isinstance(value, dict):
        return {}, "not a JSON object with keys"
    try:
        "".join(value).encode()  # keys name columns: no lone surrogates
    except ValueError as error:
        return {}, f"not JSON ({error})"
    return value, None


def _parsed(content: str | bytes) -> Any:
    """Returns the value of `json.loads`; for short texts, this takes less than half the time."""
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    text = content.strip(BLANKS)
    try:
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError):
        pass
    return json.loads(content)  # raises an error with the location


def _entries(file: IO[str]) -> Iterator[tuple[Any, int]]:
    """Yields the values of a JSON list and their lengths in characters."""
    decode = json.JSONDecoder(strict=False).raw_decode
    text = file.read(WINDOW)
    start, separator = text.index("[") + 1, "["
    while separator != "]":
        try:
            first = _skip_blanks(text, start)
            value, end = (None, first) if text[first] == "]" else decode(text, first)
            end = _skip_blanks(text, end)
            separator = text[end]
        except (ValueError, IndexError) as error:  # the entry may end in the next window
            more = file.read(max(WINDOW, len(text) - start))
            if not more or len(text) - start > LARGEST_ENTRY:
                early = isinstance(error, IndexError)
                reason = "the file ends inside the list; fetch or write it again"
                # Without the position in the window, which is not the position in the file.
                raise ValueError(reason if early else getattr(error, "msg", error)) from None
            text, start = text[start:] + more, 0
            continue
        if end > first:
            yield value, end - start
        if separator not in ",]":
            raise ValueError(f"{separator!r} instead of a comma")
        start = end + 1
    if (text[start:] + file.read(WINDOW)).strip():
        raise ValueError("there is more after its end")


def _skip_blanks(text: str, start: int) -> int:
    match = _BLANKS.match(text, start)
    return start if match is None else match.end()


def _load(path: Path) -> dict[str, Any]:

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise UserError(f"{path}: the key {repeated!r} is there twice.")
        return entries

    try:
        entries = json.loads(read_text(path, "utf-8-sig", "replace"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}).") from None
    if not isinstance(entries, dict) or not entries:
        raise UserError(f"{path} is empty, or neither an object nor a list of rows.")
    return entries
