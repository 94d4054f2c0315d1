"""JSON files that hold a whole data set, such as captions of COCO, or SQuAD's questions."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_text
from big_retrieval.own_data.roots import with_images
from big_retrieval.own_data.splits import SPLITS, DataFiles, FoundData, split_of, with_validation

PEEKED = 2**16  # bytes at the start and the end of a file that tell its layout


def _coco(whole: Any) -> Iterable[tuple[str, Record]]:
    captions: dict[Any, list[str]] = {}
    for each in whole["annotations"]:
        captions.setdefault(each["image_id"], []).append(each["caption"].strip())
    for image in whole["images"]:
        yield "", {"image": image["file_name"], "captions": captions.get(image["id"], [])}


def _karpathy(whole: Any) -> Iterable[tuple[str, Record]]:
    for image in whole["images"]:
        name = str(Path(image.get("filepath", ""), image["filename"]))
        texts = [sentence["raw"].strip() for sentence in image["sentences"]]
        yield SPLITS.get(image["split"], ""), {"image": name, "captions": texts}


def _squad(whole: Any) -> Iterable[tuple[str, Record]]:
    for article in whole["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                if not asked.get("is_impossible"):
                    yield "", {"question": asked["question"], "context": paragraph["context"]}


def _by_file(whole: Any) -> Iterable[tuple[str, Record]]:
    for name, said in whole.items():
        yield "", {"image": name, "captions": [said] if isinstance(said, str) else said}


def _lists(whole: Any) -> Iterable[tuple[str, Record]]:
    for key, rows in whole.items():
        for row in rows if isinstance(rows, list) else ():
            yield SPLITS.get(key.lower(), ""), dict(row)


# What files of a layout have near their start or end, and the split ("": none is said) and the row
# of each of their records.
LAYOUTS: dict[str, tuple[Sequence[bytes], Callable[[Any], Iterable[tuple[str, Record]]]]] = {
    "captions of COCO": ((rb'"image_id"', rb'"caption"'), _coco),
    "Karpathy's splits": ((rb'"sentences"', rb'"filename"'), _karpathy),
    "SQuAD's questions": ((rb'"paragraphs"', rb'"context"'), _squad),
    "captions by file": ((rb'\A\W*"[^"]*\.(jpe?g|png|webp|gif|JPE?G|PNG)"\s*:\s*["\[]',), _by_file),
    "lists of records": (
        (rb'"(data|rows|records|train|val|validation|test)"\s*:\s*\[\s*\{',),
        _lists,
    ),
}
# The first lines of a file with an object a line, which may have any of these keys.
BY_LINES = re.compile(rb"\W*\{[^\n]*\}\s*\n\s*\{")


def read_layout(files: Sequence[Path], folder: Path) -> FoundData | None:
    """The data set that JSON files hold, of the first layout that some of them have.

    Args:
      files: all that lie there.
      folder: that they are in; folders below it, and the files' names, may say splits.

    Returns:
      Its splits, as rows that have to be written; None: no file has a known layout.

    Raises:
      UserError: a file looks like one of them and is another one.
    """
    peeked = {file: _peek(file) for file in files if file.suffix.lower() == ".json"}
    problem = None
    for layout, (marks, _) in LAYOUTS.items():
        mine = [file for file, text in peeked.items() if all(re.search(x, text) for x in marks)]
        try:
            if mine:
                return _read(layout, mine, folder)
        except UserError as wrong:  # another layout may have the same keys
            problem = problem or wrong
    if problem:
        raise problem
    return None


def _peek(file: Path) -> bytes:
    """The start and the end of a file; b"" of one that is no object with keys."""
    if not file.is_file():
        return b""
    with file.open("rb") as opened:
        start = opened.read(PEEKED)
        opened.seek(max(0, file.stat().st_size - PEEKED))
        start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
        is_object = start.startswith(b"{") and not BY_LINES.match(start)
        return start + opened.read() if is_object else b""


def _read(layout: str, files: Sequence[Path], folder: Path) -> FoundData:
    rows: dict[str, list[Record]] = {}
    several = len({file.parent for file in files}) > 1
    for file in files:
        named, own = split_of(file, folder), dict[str, list[Record]]()
        try:
            whole = json.loads(read_text(file, "utf-8-sig", "replace"))
            for split, row in LAYOUTS[layout][1](whole):
                own.setdefault(split or named or "train", []).append(row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise UserError(
                f"--data: {file} looks like {layout} but cannot be read as such "
                f"({type(problem).__name__}: {problem}); correct it or give another file."
            ) from None
        for split, each in own.items():
            table: Table = Rows(each, split)
            table = with_images(file, table, several) if len(files) > 1 else table
            rows.setdefault(split, []).extend(map(table.row, range(len(table))))
    if "train" not in rows:
        rows = {"train": [row for each in rows.values() for row in each]}
    with_validation(rows)
    splits = {x: DataFiles(Rows(each, x), "", files[0].parent) for x, each in rows.items()}
    return FoundData(layout, splits)
