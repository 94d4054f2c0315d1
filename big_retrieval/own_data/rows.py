"""Rows of a table written anew, for files that no source reads as they are."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError

GROUP = 256  # rows of a Parquet file that are held together, as they may hold images


def read_rows(table: Table, rows: Iterable[int], image: str, root: Path) -> Iterator[Record]:
    """Rows with whole paths of images, so that they may be written anywhere.

    Args:
      table: all rows.
      rows: numbers of those to read; damaged ones are left out.
      image: the column of images; "": there is none.
      root: the folder that their paths start from.
    """
    for index in rows:
        try:
            row = table.row(int(index))
        except Damaged:
            continue
        if isinstance(value := row.get(image), Mapping):
            row[image] = value = value.get("bytes") or value.get("path")
        if isinstance(value, str) and value:
            row[image] = str(root / value)
        yield row


def merged(groups: Iterable[Sequence[Record]], image: str, text: str) -> Iterator[Record]:
    """A record for each group of rows: the first one's image, and the different texts of all."""
    for group in groups:
        values = (row.get(text) for row in group)
        texts = (x for value in values for x in (value if isinstance(value, list) else [value]))
        kept: dict[str, str] = {}
        for each in texts:
            if not is_absent(each):
                kept.setdefault(normalize_text(str(each)), str(each).strip())
        if kept:
            yield {image: group[0].get(image), text: list(kept.values())}


def write_rows(path: Path, rows: Iterable[Record], image: str) -> Path:
    """Writes rows as JSON lines, or as Parquet where their images are the content of files.

    Args:
      path: the file, without an ending.
      rows: what to write; of Parquet, all have the columns of the first one.
      image: the column of images; "": there is none.

    Returns:
      The file.

    Raises:
      UserError: values of a column are of different types, which Parquet cannot hold.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, GROUP))
    rows = itertools.chain(first, rows)
    if not isinstance(first[0].get(image), bytes):
        path = path.with_name(f"{path.name}.jsonl")
        with path.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(json.dumps(x, ensure_ascii=False, default=str) + "\n" for x in rows)
        return path
    path = path.with_name(f"{path.name}.parquet")
    types = pa.Table.from_pylist(first).schema
    schema = pa.schema([x.with_type(pa.string()) if pa.types.is_null(x.type) else x for x in types])
    with pq.ParquetWriter(path, schema) as writer:
        while block := list(itertools.islice(rows, GROUP)):
            try:
                writer.write_table(pa.Table.from_pylist(block, schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
                raise UserError(f"a column holds values of different types ({problem}).") from None
    return path
