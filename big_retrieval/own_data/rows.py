"""Rows of a table written as JSON lines, for files that no source reads as they are."""

import json
from collections.abc import Iterable
from pathlib import Path

from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import Damaged


def write_lines(path: Path, table: Table, rows: Iterable[int], image: str, root: Path) -> None:
    """Writes rows, with whole paths of images, so that the file may lie anywhere.

    Args:
      path: the file.
      table: all rows.
      rows: numbers of those to write.
      image: the column of images; "": there is none.
      root: the folder that their paths start from.
    """
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for index in rows:
            try:
                row = table.row(int(index))
            except Damaged:
                continue
            if isinstance(value := row.get(image), str) and value:
                row[image] = str(root / value)
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
