"""What lies at a path: tables, tars, or pictures with captions beside them, and their splits."""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from big_retrieval.data.formats.open_files import expand, table_of
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.errors import UserError
from big_retrieval.own_data.delimited import read_delimited
from big_retrieval.own_data.pictures import CAPTIONS, IMAGES, picture_rows

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".npz")
TARS = (".tar",)
SHARDS = "dataset.json"  # of a folder that `data convert` wrote
RUN_FILE = "metrics.jsonl"  # a folder with it is a run, whose pictures are no data
SPLITS = {  # words of a file's or folder's name -> the split that they mean
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
KNOWN = (
    "pictures with text files beside them (cat.jpg and cat.txt), .csv, .tsv, .jsonl, .json, "
    ".parquet, .npz, or .tar shards"
)


@dataclass(frozen=True)
class DataFiles:
    """Files whose rows are one split.

    Attributes:
      table: their rows.
      pattern: what a source's `path` calls them; "": no source reads them as they are, so that
        their rows have to be written as JSON lines first.
      root: the folder of the files, where image paths start from.
    """

    table: Table
    pattern: str
    root: Path


@dataclass(frozen=True)
class FoundData:
    """What lies at a path.

    Attributes:
      form: "table", "tar" or "pictures".
      splits: "train", and perhaps "validation" and "test" where the files' names say so.
      notes: what a user should know about how they were read.
    """

    form: str
    splits: dict[str, DataFiles]
    notes: list[str] = field(default_factory=list)

    @property
    def train(self) -> DataFiles:
        """The split that is trained on."""
        return self.splits["train"]


def find(path: str, leave_out: Path | None = None) -> FoundData:
    """Opens what lies at a path.

    Args:
      path: a file, a folder, or a pattern of files.
      leave_out: a folder whose files do not count, such as the run's own.

    Raises:
      UserError: nothing is there, nothing of a known form, or several things that do not belong
        together.
    """
    given, missing = expand(path)
    if missing:
        raise UserError(f"--data: there is no file or folder {missing[0]!r}; check the path.")
    if len(given) == 1 and given[0].is_dir():
        return _folder(given[0].absolute(), leave_out)
    files = [each.absolute() for each in given]
    endings = {_ending(file) for file in files}
    if not endings <= {*TABLES, *TARS}:
        odd = next(file for file in files if _ending(file) not in (*TABLES, *TARS))
        raise UserError(f"--data: {odd} is of no known form; known: {KNOWN}.")
    return _of_files(files, files[0].parent)


def _ending(file: Path) -> str:
    return file.suffix.lower()


def walk(folder: Path, leave_out: Path | None = None) -> list[Path]:
    """All files below a folder in order, without hidden ones and without those of runs."""
    out = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if RUN_FILE in names or (leave_out is not None and here == leave_out.absolute()):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        out += [here / name for name in sorted(names) if not name.startswith(".")]
    return out


def _folder(folder: Path, leave_out: Path | None) -> FoundData:
    if (folder / SHARDS).is_file():
        table, _ = table_of([folder])
        return FoundData("table", {"train": DataFiles(table, str(folder), folder)})
    files = walk(folder, leave_out)
    tars = [file for file in files if _ending(file) in TARS]
    if tars:
        return _of_files(tars, folder)
    images = [file for file in files if _ending(file) in IMAGES]
    beside = {file.with_suffix("") for file in images}
    tables = [
        file for file in files if _ending(file) in TABLES and file.with_suffix("") not in beside
    ]
    if tables:
        least = min(len(file.parts) for file in tables)
        highest = [file for file in tables if len(file.parts) == least]
        return _of_files(highest, folder)
    if not images:
        held = sorted({_ending(file) or "files without an ending" for file in files})
        what = f"only {', '.join(held[:8])}" if held else "nothing"
        raise UserError(f"--data: {folder} holds {what}; wanted are {KNOWN}.")
    texts = [file for file in files if _ending(file) in CAPTIONS]
    return _pictures(folder, images, texts)


def split_of(file: Path, folder: Path) -> str:
    """The split that the name of a file says, or of a folder between it and `folder`; or ""."""
    names = [file.stem, *reversed(file.relative_to(folder).parts[:-1])]
    for name in names:
        for word in re.split(r"[^a-z]+", name.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return ""


def _grouped(files: Sequence[Path], folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each split; all are for training where none is named for it."""
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
    if "validation" not in groups and "test" in groups:
        groups["validation"] = groups.pop("test")
    for split, found in groups.items():
        names = found[0].name if len(found) == 1 else f"{len(found):,} files"
        notes.append(f"{names} for {split}, as the name says")
    return groups, notes


def _of_files(files: Sequence[Path], folder: Path) -> FoundData:
    """Tables or tars, grouped by splits."""
    groups, notes = _grouped(files, folder)
    splits = {name: _opened(group, notes) for name, group in groups.items()}
    form = "tar" if _ending(groups["train"][0]) in TARS else "table"
    return FoundData(form, splits, notes)


def _opened(files: Sequence[Path], notes: list[str]) -> DataFiles:
    """Several files of one form as one table.

    Raises:
      UserError: their columns differ, or one has no rows.
    """
    if len(files) > 1:
        _check_alike(files)
    plain: list[str] = []
    table, _ = table_of(list(files), lambda file: read_delimited(file, plain))
    pattern = str(files[0]) if len(files) == 1 else _pattern(files)
    notes += [note for note in plain if note]
    return DataFiles(table, "" if plain else pattern, files[0].parent)


def _check_alike(files: Sequence[Path]) -> None:
    columns = {file: read_delimited(file, []).columns for file in files[:20]}
    first = files[0]
    for file, names in columns.items():
        if names != columns[first] or _ending(file) != _ending(first):
            listed = "; ".join(
                f"{file.name} ({', '.join(sorted(columns[file] or ())) or 'no fixed columns'})"
                for file in (first, file)
            )
            raise UserError(
                f"--data: {first.parent} holds tables that differ: {listed}; give one of them: "
                f"--data={first}."
            )


def _pattern(files: Sequence[Path]) -> str:
    """A pattern that leads to these files and no other; "" where there is none."""
    folders, endings = {file.parent for file in files}, {file.suffix for file in files}
    if len(folders) > 1 or len(endings) > 1:
        return ""
    pairs = zip(min(file.name for file in files), max(file.name for file in files), strict=False)
    start = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = sorted(files[0].parent.glob(f"{start}*{files[0].suffix}"))
    return f"{files[0].parent}/{start}*{files[0].suffix}" if found == sorted(files) else ""


def _pictures(folder: Path, images: Sequence[Path], texts: Sequence[Path]) -> FoundData:
    """Pictures with text files, as rows that have to be written."""
    groups, notes = _grouped(images, folder)
    whole = all(split_of(folder / image.relative_to(folder).parts[0], folder) for image in images)
    if not whole or len(groups) < 2:  # such as pictures of trains among others
        groups, notes = {"train": list(images)}, []
    splits = {}
    for name, group in groups.items():
        rows, told = picture_rows(group, texts, folder)
        notes += told
        splits[name] = DataFiles(Rows(rows, folder.name), "", folder)
    return FoundData("pictures", splits, notes)
