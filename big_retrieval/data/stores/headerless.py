"""Readers of lines without a header: tab-separated texts, and qrels. Quotes are letters.

A first line whose cells are all in `HEADER` is a header: `tab_reader` leaves it to the reader of
TSV files, and so does `qrels_reader` with one whose last cell is not a number.
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
      names: of the cells, if there is no header.
      least: minimum number of cells of a line; None if each line has all.
    """
    cells = {cell.strip().lower() for cell in read_first_line(path).split("\t")}
    if cells <= HEADER:
        return Reader(read_delimited, "line", options={"delimiter": "\t", "lower": True})
    options = {"names": list(names), "least": len(names) if least is None else least}
    return Reader(read_tabs, "line", copied_share=2, options=options)


def qrels_reader(path: Path, names: Sequence[str]) -> Reader:
    """Returns the reader of a file of `query document score`, or TREC's `query 0 document score`.

    Args:
      names: columns of query, document and score, if there is no header.
    """
    cells = split_columns(read_first_line(path), (3, 4))
    if len(cells) in (3, 4) and _is_number(cells[-1]):
        return Reader(read_qrels, "line", copied_share=2, options={"names": list(names)})
    return delimited("\t")


@in_blocks
def read_tabs(path: Path, names: Sequence[str], least: int) -> Iterator[FileRow | str]:
    """Yields the cells of lines under their names; last cells that a line lacks are missing."""
    notes, most = list[str](), len(names)
    for number, line in _lines(path, notes, "\n"):
        cells = line.split("\t")
        if least <= len(cells) <= most:
            yield dict(zip(names, cells, strict=False)), number, None, len(line)
        else:
            reason = f"the line has {len(cells)} cells; {most} are expected: {', '.join(names)}"
            yield {}, number, reason, len(line)
    yield from notes


@in_blocks
def read_qrels(path: Path, names: Sequence[str]) -> Iterator[FileRow | str]:
    """Yields query, document and score of lines with as many cells as the first line."""
    notes, counts = list[str](), (3, 4)
    for number, line in _lines(path, notes, None):
        cells = split_columns(line, counts)
        if len(cells) in counts:
            counts = (len(cells),)
            row = dict(zip(names, (cells[0], *cells[-2:]), strict=True))
            yield row, number, None, len(line)
        else:
            expected = (
                "3 or 4 are expected" if len(counts) > 1 else f"lines before have {counts[0]}"
            )
            yield {}, number, f"the line has {len(cells)} cells; {expected}", len(line)
    yield from notes


def split_columns(line: str, counts: Collection[int]) -> list[str]:
    """Cuts a line of qrels or of a run file into its cells.

    Tabs divide the cells if they give one of `counts`. Otherwise white space divides them, and ids
    have none. Cells lose the white space around them. White space is that of ASCII only, as in
    trec_eval: an id may contain other blanks.

    Args:
      counts: expected numbers of cells.
    """
    if line.count("\t") + 1 in counts:
        return [cell.strip(SPACE) for cell in line.split("\t")]
    return _SPACES.split(line.strip(SPACE))


def _lines(path: Path, notes: list[str], newline: str | None) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file that are not empty, with their numbers, from 1.

    Args:
      notes: takes what is unusual about the encoding.
      newline: end of a line; None for any.
    """
    encoding = encoding_of(path, notes)
    with path.open(encoding=encoding, errors="replace", newline=newline) as file:
        for number, line in enumerate(file, 1):
            if line.strip(" \r\n"):
                yield number, line.rstrip("\r\n")


def read_first_line(path: Path) -> str:
    """Returns the first line of a text file that is not empty, with its end."""
    check_regular(path)
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in UTF16_MARKS else "utf-8-sig"
    with path.open(encoding=encoding, errors="replace") as file:
        return next((line for line in file if line.strip(" \r\n")), "")


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(text) is not None
    return False
