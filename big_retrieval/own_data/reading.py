"""How the records of a split are read: which of them are usable, and the source that reads them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from big_retrieval.config import Pairs, Tar
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.views import save_rows
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.roles import Roles, endings
from big_retrieval.own_data.roots import root_of
from big_retrieval.own_data.rows import merged, read_rows, write_rows
from big_retrieval.own_data.splits import DataFiles
from big_retrieval.own_data.splitting import RecordKeys, keys_of

log = logging.getLogger(__name__)
MANY = 50_000  # records from which a user is told that all are read
SEVERAL = 0.6  # different images a row below which rows of one image are made one record


@dataclass(frozen=True)
class SplitReading:
    """The records of a split.

    Attributes:
      name: of the split.
      files: whose rows they are.
      roles: of the columns.
      columns: by a sample of this split, or of the one that is trained on.
      sampled: whether it is of this one.
    """

    name: str
    files: DataFiles
    roles: Roles
    columns: Mapping[str, Column]
    sampled: bool = True

    @cached_property
    def root(self) -> Path:
        """The folder that image paths start from; splits may have one each."""
        column = self.columns.get(self.roles["image"])
        if column is None or not column.files:
            return self.files.root
        if self.sampled:
            return column.root
        return root_of(self.files.table, column.name, self.files.root, self.name)

    @property
    def from_tars(self) -> bool:
        """Whether the records are samples of tar shards."""
        return self.files.pattern.endswith(".tar")

    def keys(self) -> RecordKeys:
        """Which records are usable, and what they share; reads all of them."""
        roles, table = self.roles, self.files.table
        if len(table) > MANY:
            log.info(f"reading all {len(table):,} records once, to keep copies apart ...")
        texts = [roles[role] for role in ("text", "query", "document") if roles[role]]
        image = endings(self.columns) if self.from_tars else (roles["image"],)
        image = image if roles["image"] else ()
        return keys_of(table, image, texts, self.root, roles["verdict"], roles.least)

    def source(self, rows: np.ndarray, keys: RecordKeys, folder: Path) -> tuple[Source, int]:
        """The source of some rows, and how many records it has.

        Rows with few different images are a record for each image, with several captions.

        Args:
          rows: their numbers, int64 [n].
          keys: of the split's records.
          folder: takes the rows where no source reads the files as they are, or their numbers.
        """
        roles, files = self.roles, self.files
        image, text = roles["image"], roles["text"] or roles["document"]
        numbers = rows if files.chosen is None else files.chosen[rows]
        if self.from_tars:
            members = tuple(dict.fromkeys((image, *endings(self.columns))))
            source = Tar(path=files.pattern, image=members, text=text)
            return self._with_rows(source, folder, numbers), len(rows)
        groups = _of_one_image(rows, keys) if roles.kind == "captions" else []
        copies = keys.copies()
        if files.pattern and self.root == files.root and not groups and not copies:
            source = Pairs(path=files.pattern, image=image, text=text)
            return self._with_rows(source, folder, numbers), len(rows)
        found = read_rows(files.table, rows, image, self.root)
        if groups:
            log.info(
                f"{len(rows):,} rows for {self.name} have {len(groups):,} different images: the "
                "rows of an image are one record with several captions"
            )
            each = (list(read_rows(files.table, group, image, self.root)) for group in groups)
            found = merged(filter(None, each), image, text)
        # Sources compare paths: copies get that of the first one, so that they count as one image.
        if copies:
            found = ({**row, image: copies.get(row[image], row[image])} for row in found)
        path = write_rows(folder / self.name, found, image)
        return Pairs(path=str(path.absolute()), image=image, text=text), len(groups or rows)

    def _with_rows(self, source: Pairs | Tar, folder: Path, rows: np.ndarray) -> Pairs | Tar:
        """Writes row indices; returns the source with the path of their file."""
        path = folder / f"{self.name}_rows.npz"
        save_rows(path, rows, cast(Records, source.build()).table)
        return replace(source, rows=str(path.absolute()))


def _of_one_image(rows: np.ndarray, keys: RecordKeys) -> list[list[int]]:
    """The rows of each image, in their order; [] where most images have a row of their own."""
    image = dict(zip(keys.rows, keys.image, strict=True))
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(image[row], []).append(row)
    return list(groups.values()) if len(groups) < SEVERAL * len(rows) else []
