"""Readers of lines without a header: tab-separated texts, and qrels. Quotes are plain text.

If all cells of the first line are in `HEADER`, `tab_reader` uses the reader of TSV files with a
header. `qrels_reader` does so if the last cell of the first line is not a number.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from big_retrieval.data.stores.blocks import FileRow, Reader, in_blocks
from big_retrieval.data.stores.delimited import UTF16_MARKS, delimited, encoding_of, read_delimited
from big_retrieval.io.regular import check_regular

IDS = {"id", "_id", "docid", "doc_id", "pid", "qid", "query_id"}
TEXTS = {"text", "title", "passage", "query", "question"}
HEADER = IDS | TEXTS | {"pos", "positive", "neg", "negative"}
SPACE = " \t\n\r\v\f"  # white space of ASCII
_SPACES = re.compile(f"[{SPACE}]+")


def tab_reader(path: Path, names: Sequence[str], least: int | None = None) -> Reader:
    """Returns the reader of a file of tab-separated cells that may have a header.

    Args:
      names: columns of a file without a header.
      least: minimum number of cells per line; None if every line must have all cells.
    """
    cells = {cell.strip().lower() for cell in read_first_line(path).split("\t")}
    if cells <= HEADER:
        return Reader(read_delimited, "line", options={"delimiter": "\t", "lower": True})
    options = {"names": list(names), "least": len(names) if least is None else least}
    return Reader(read_tabs, "line", copied_share=2, options=options)


def qrels_reader(path: Path, names: Sequence[str]) -> Reader:
    """Returns the reader of lines `query document score`, or TREC's `query 0 document score`.

    Args:
      names: columns of query, document and score in a file without a header.
    """
    cells = split_columns(read_first_line(path), (3, 4))
    if len(cells) in (3, 4) and _is_number(cells[-1]):
        return Reader(read_qrels, "line", copied_share=2, options={"names": list(names)})
    return delimited("\t")


@in_blocks
def read_tabs(path: Path, names: Sequence[str], least: int) -> Iterator[FileRow | str]:
    """Yields the cells of lines by name; a row has no columns for missing last cells."""
    notes, count = list[str](), len(names)
    for line_number, line in _lines(path, notes, "\n"):
        cells = line.split("\t")
        if least <= len(cells) <= count:
            yield dict(zip(names, cells, strict=False)), line_number, None, len(line)
        else:
            reason = f"the line has {len(cells)} cells; {count} are expected: {', '.join(names)}"
            yield {}, line_number, reason, len(line)
    yield from notes


@in_blocks
def read_qrels(path: Path, names: Sequence[str]) -> Iterator[FileRow | str]:
    """Yields query, document and score; all lines need the same number of cells as the first."""
    notes, counts = list[str](), (3, 4)
    for line_number, line in _lines(path, notes, None):
        cells = split_columns(line, counts)
        row, reason = {}, None
        if len(cells) in counts:
            counts = (len(cells),)
            row = dict(zip(names, (cells[0], *cells[-2:]), strict=True))
        else:
            expected = (
                f"lines before have {counts[0]}" if len(counts) < 2 else "3 or 4 are expected"
            )
            reason = f"the line has {len(cells)} cells; {expected}"
        yield row, line_number, reason, len(line)
    yield from notes


def split_columns(line: str, counts: Collection[int]) -> list[str]:
    """Splits a line of qrels or of a run file into cells, without the white space around them.

    Tabs separate cells if this gives one of the expected `counts` of cells, else white space. Only
    ASCII white space counts, as in trec_eval: an id may contain other spaces.
    """
    if line.count("\t") + 1 in counts:
        return [cell.strip(SPACE) for cell in line.split("\t")]
    return _SPACES.split(line.strip(SPACE))


def _lines(path: Path, notes: list[str], newline: str | None) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line) of nonempty lines; adds messages on the encoding."""
    encoding = encoding_of(path, notes)
    with path.open(encoding=encoding, errors="replace", newline=newline) as file:
        for line_number, line in enumerate(file, 1):
            if line.strip(" \r\n"):
                yield line_number, line.rstrip("\r\n")


def read_first_line(path: Path) -> str:
    """Returns the first nonempty line of a text file, with its line end."""
    check_regular(path)
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in UTF16_MARKS else "utf-8-sig"
    with path.open(encoding=encoding, errors="replace") as file:
        return next((line for line in file if line.strip(" \r\n")), "")


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(text) is not None
    return False
