"""Splits of data that names say: of files, of folders, or in a column of a table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import View
from big_retrieval.errors import Damaged

SPLITS = {  # words of a file's or folder's name -> the split that they mean
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
COLUMNS = ("split", "json:split", "subset", "partition", "set")  # of a split's name


@dataclass(frozen=True)
class DataFiles:
    """Files whose rows are one split.

    Attributes:
      table: their rows, or those that are of the split.
      pattern: what a source's `path` calls them; "": no source reads them as they are, so that
        their rows have to be written first.
      root: the folder of the files, where image paths start from.
      chosen: numbers of the files' rows that `table` has, int64 [n]; None: all.
    """

    table: Table
    pattern: str
    root: Path
    chosen: np.ndarray | None = None


@dataclass(frozen=True)
class FoundData:
    """What lies at a path.

    Attributes:
      form: "a table", "tar shards", "pictures", or what else the files are called.
      splits: "train", and perhaps "validation" and "test" where names say so.
      notes: what a user should know about how they were read.
    """

    form: str
    splits: dict[str, DataFiles]
    notes: list[str] = field(default_factory=list)

    @property
    def train(self) -> DataFiles:
        """The split that is trained on."""
        return self.splits["train"]


def split_word(name: str) -> str:
    """The split that a word of a name says, such as "train" of train2017; "": none does."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def split_of(file: Path, folder: Path) -> str:
    """The split that the name of a file says, or of a folder between it and `folder`; or ""."""
    names = [file.stem, *reversed(file.relative_to(folder).parts[:-1])]
    return next(filter(None, map(split_word, names)), "")


def grouped(files: Sequence[Path], folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each split, all for training where none is named for it, and what to say."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(split_of(file, folder), []).append(file)
    if "train" not in groups:
        return {"train": list(files)}, []
    rest = groups.pop("", [])
    notes = []
    if rest:
        names = ", ".join(file.name for file in rest[:3]) + (" ..." if len(rest) > 3 else "")
        notes.append(f"{names}: left out, as the names say of no split, and those of others do")
    with_validation(groups)
    for split, found in groups.items():
        names = str(found[0].relative_to(folder)) if len(found) == 1 else f"{len(found):,} files"
        notes.append(f"{names} for {split}, as the name says")
    return groups, notes


def with_validation(groups: dict) -> None:
    """Lets the test be validated on where nothing else is: a run without validation is blind."""
    if "validation" not in groups and "test" in groups:
        groups["validation"] = groups.pop("test")


def by_column(found: FoundData) -> FoundData:
    """Data of one split, divided by a column that says of each row which split it is of."""
    files = found.train
    first = {key: SPLITS.get(str(value).lower()) for key, value in _row(files.table, 0).items()}
    name = next((key for key, split in first.items() if split and key.lower() in COLUMNS), "")
    if len(found.splits) > 1 or not name:
        return found
    groups: dict[str, list[int]] = {}
    for index in range(len(files.table)):
        word = str(_row(files.table, index, name).get(name)).strip().lower()
        groups.setdefault(SPLITS.get(word, ""), []).append(index)
    if "train" not in groups or len(groups.keys() - {""}) < 2:
        return found
    notes = [f"column {name!r} says which records are for which split"]
    if rest := groups.pop("", []):
        notes.append(f"{len(rest):,} records left out, as their {name!r} says no known split")
    with_validation(groups)
    splits = {}
    for split, each in groups.items():
        chosen = np.array(each, np.int64)
        splits[split] = replace(files, table=View(files.table, chosen), chosen=chosen)
    return replace(found, splits=splits, notes=[*found.notes, *notes])


def _row(table: Table, index: int, *columns: str) -> dict:
    try:
        return table.row(index, columns or None)
    except Damaged:
        return {}
