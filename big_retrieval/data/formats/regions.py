"""Regions of images in addition to a table: memory-mapped features and boxes, a row per image."""

import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from big_retrieval.data.fields.stores import open_store
from big_retrieval.data.formats.tables import Derived, Table, combined_digest
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_text

FEATURES, BOXES, INDEX = "features.npy", "boxes.npy", "regions.json"  # in a folder of regions
COLUMNS = {FEATURES: "regions", BOXES: "boxes"}  # file -> column of the records


class WithRegions(Derived):
    """A table with the additional columns `regions` [R, F] and, if there are boxes, `boxes` [R, 4].

    Args:
      rows: for each row of the table, the row in the files, int64 [n].
      files: column -> .npy file.
    """

    def __init__(self, table: Table, rows: np.ndarray, files: dict[str, str]):
        super().__init__(table)
        self._rows, self._files = rows, files
        if table.columns is not None:
            self.columns = table.columns | files.keys()

    def place(self, index: int) -> str:
        return f"{self._table.place(index)} ({self._files['regions']}, row {self._rows[index]})"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        row = self._table.row(index, columns)
        for column, file in self._files.items():
            if columns is None or column in columns:
                row[column] = open_store(file)[self._rows[index]]
        return row

    def column(self, name: str) -> pa.ChunkedArray | None:
        return None if name in self._files else self._table.column(name)

    @functools.cached_property
    def fingerprint(self) -> str:
        return combined_digest([self._table.fingerprint], self._rows)


def find_rows(folder: Path, images: Sequence[Sequence[str]]) -> tuple[np.ndarray, dict[str, str]]:
    """Finds images in a folder that `examples/convert_regions.py` wrote.

    Args:
      images: possible names of each image.

    Returns:
      Rows int64 [n], -1 for a missing image; and column -> file.
    """
    try:
        ids = json.loads(read_text(folder / INDEX))["ids"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder} is not a folder of regions: {INDEX} is missing or unreadable. Write it with "
            "examples/convert_regions.py."
        ) from None
    files = {column: str(folder / name) for name, column in COLUMNS.items()}
    for file in files.values():
        if len(open_store(file, again=True)) != len(ids):
            raise UserError(
                f"{file} has {len(open_store(file)):,} rows for {len(ids):,} images of {INDEX}. "
                "Write the folder again with examples/convert_regions.py."
            )
    by_name = {name: row for row, name in enumerate(ids)}
    rows = [next((by_name[x] for x in names if x in by_name), -1) for names in images]
    return np.array(rows, np.int64), files
