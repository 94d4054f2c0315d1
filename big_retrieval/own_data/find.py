"""Files at a path, by split: tables, tar shards, pictures, or JSON files of a known layout."""

import glob
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Karpathy
from big_retrieval.data.formats.open_files import READERS, expand, table_of
from big_retrieval.data.formats.pictures import IMAGES, is_folder_of_shards, walk
from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import Damaged, UserError
from big_retrieval.own_data import layouts

TAR = ".tar"
TABLES = {*READERS, ".npz"} - {TAR}
SPLITS = {  # word in the name of a file or folder, or in a column -> split
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SPLIT_COLUMNS = ("split", "json:split", "subset", "partition", "set")
KNOWN = (
    "known forms are pictures with text files of the same names (cat.jpg and cat.txt), .csv, .tsv, "
    ".jsonl, .parquet, .npz, .tar shards, COCO's captions, a Karpathy split file, and folders in "
    "BEIR's form"
)
REMEDIES = {  # what to do with files -> their endings
    "unpack it first, and give the folder of its files": (
        ".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"
    ),
    "save it as CSV": (".xlsx", ".xls", ".ods", ".db", ".sqlite"),
    "write it as Parquet first, such as with to_parquet() of pandas or datasets": (
        ".arrow", ".feather", ".h5", ".hdf5", ".pkl", ".pickle"
    ),
    "write JSON lines (.jsonl), an object per line": (".json",),
    "if it is a table, call it .csv or .tsv, with a line of column names": (".txt", ".token"),
}  # fmt: skip


@dataclass(frozen=True)
class DataSplit:
    """Records of one split.

    Attributes:
      path: file, folder or pattern, as `path` of a source.
      where: terms that choose the rows of the split, as in `config.Pairs`; empty if all rows are of
        the split, or terms cannot choose them.
      rows: indices of the rows of the split, int64 [n]; None for all.
      source: of a Karpathy split file.
    """

    path: str
    table: Table
    where: tuple[str, ...] = ()
    rows: np.ndarray | None = None
    source: Karpathy | None = None

    def __len__(self) -> int:
        return len(self.table) if self.rows is None else len(self.rows)


@dataclass(frozen=True)
class FoundData:
    """Data at a path: their form for messages, split -> records, and messages about the splits.

    One split is always "train"; others may be "validation" and "test".
    """

    form: str
    splits: dict[str, DataSplit]
    notes: list[str] = field(default_factory=list)


def find(data: str, images: str, scratch: Path, leave_out: Path | None = None) -> FoundData:
    """Opens the data at a path.

    Args:
      images: folder of the pictures of COCO and Karpathy files; empty: near the file.
      scratch: folder for the captions of COCO as JSON lines.
      leave_out: a folder whose files do not count, such as the run folder.

    Raises:
      UserError: no file exists at the path, or none has a known form.
    """
    given, missing = expand(data)
    if missing:
        raise UserError(f"--data: there is no file or folder {missing[0]!r}. Check the path.")
    files = [path.resolve() if ".." in path.parts else path.absolute() for path in given]
    is_folder = len(files) == 1 and files[0].is_dir()
    folder = files[0] if is_folder else Path(os.path.commonpath({x.parent for x in files}))
    files = walk(folder, leave_out) if is_folder else files
    pictures = {file.stem for file in files if file.suffix.lower() in IMAGES}
    others = [file for file in files if file.stem not in pictures]
    for file in others:
        if layouts.has_layout(file, layouts.KARPATHY):
            splits = {}
            for name, source in layouts.karpathy_sources(file, images).items():
                built: Any = source.build()
                splits[name] = DataSplit(str(file), built.table, source=source)
            return FoundData("a Karpathy split file", splits)
    coco = [file for file in others if layouts.has_layout(file, layouts.COCO)]
    if coco:
        written = [scratch.absolute() / f"{file.stem}.jsonl" for file in coco]
        for file, out in zip(coco, written, strict=True):
            layouts.write_coco(file, images, out)
        return replace(_of_files(written, scratch.absolute(), ""), form="captions of COCO")
    if is_folder:
        return _by_column(_folder(folder, files))
    unknown = [file for file in files if file.suffix.lower() not in {*READERS, *TABLES}]
    if unknown:
        raise UserError(f"--data: {unknown[0]} has no known form: {_remedy(unknown)}.")
    return _by_column(_of_files(files, folder, data))


def _remedy(files: Sequence[Path]) -> str:
    """Returns what to do with one of the files, else the known forms."""
    endings = {file.suffix.lower() for file in files}
    return next((remedy for remedy, own in REMEDIES.items() if not endings.isdisjoint(own)), KNOWN)


def _folder(folder: Path, files: Sequence[Path]) -> FoundData:
    """Returns the shards, tars, tables or pictures of a folder."""
    if is_folder_of_shards(folder):
        return FoundData("shards", {"train": DataSplit(str(folder), table_of([folder])[0])})
    by_ending: dict[str, list[Path]] = {}
    for file in files:
        by_ending.setdefault(file.suffix.lower(), []).append(file)
    tables = [file for file in files if file.suffix.lower() in TABLES]
    images = [file for file in files if file.suffix.lower() in IMAGES]
    texts = {file.with_suffix("") for file in files if file.suffix.lower() in (".txt", ".json")}
    if TAR in by_ending:
        return _of_files(by_ending[TAR], folder, "")
    captioned = sum(file.with_suffix("") in texts for file in images)
    if tables and captioned < 0.5 * max(1, len(images)):
        return _of_files(tables, folder, "")
    if images:
        return _pictures(folder, images)
    held = ", ".join(sorted(by_ending.keys() - {""})[:8])
    content = f"only {held}" if held else "no data"
    raise UserError(f"--data: {folder} holds {content}: {_remedy(files)}.")


def _pictures(folder: Path, images: Sequence[Path]) -> FoundData:
    """Returns the pictures of a folder; folders in it are splits if all of their names say so."""
    tops = sorted({image.relative_to(folder).parts[0] for image in images})
    by_split = {split_word(top): folder / top for top in tops if (folder / top).is_dir()}
    if len(by_split) < len(tops) or not {"train"} < by_split.keys() - {""}:
        by_split = {"train": folder}
    splits = {x: DataSplit(str(path), table_of([path])[0]) for x, path in by_split.items()}
    return FoundData("pictures", splits)


def split_word(name: str) -> str:
    """Returns the split that a word of a name means, such as "train" of train2017, or ""."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def _of_files(files: Sequence[Path], folder: Path, pattern: str) -> FoundData:
    """Returns the splits of tables or tar shards, which their names or folders may say."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        names = [file.stem, *reversed(file.relative_to(folder).parts[:-1])]
        groups.setdefault(next(filter(None, map(split_word, names)), ""), []).append(file)
    unnamed, notes = groups.pop("", []), []
    if not groups or (len(groups) == 1 and not unnamed):
        groups = {"train": list(files)}
    elif "train" in groups and unnamed:
        names = ", ".join(file.name for file in unnamed[:3])
        notes.append(f"{names} left out: the names of other files say splits, these do not")
    elif "train" not in groups:
        groups = {"train": unnamed, **groups}
    if not groups["train"]:
        names = ", ".join(file.name for file in files[:3])
        raise UserError(f"--data: {names}: no file is for training. Call it train.")
    splits = {}
    for split, group in groups.items():
        if len(groups) > 1:
            named = group[0].name if len(group) == 1 else f"{len(group):,} files"
            notes.append(f"{named} for {split}")
        path = _path_of(group, pattern if len(groups) == 1 else "")
        splits[split] = DataSplit(path, table_of(group)[0])
    form = "tar shards" if files[0].suffix.lower() == TAR else "tables"
    return FoundData(form, splits, notes)


def _path_of(files: Sequence[Path], given: str) -> str:
    """Returns the file, or a pattern that leads to these files and no other."""
    if len(files) == 1:
        return str(files[0])
    common = _escaped(os.path.commonpath({file.parent for file in files}))
    name = f"{_escaped(_common_start([file.stem for file in files]))}*{files[0].suffix}"
    for pattern in (f"{common}/{name}", f"{common}/**/{name}", given and os.path.abspath(given)):
        if pattern and sorted(expand(pattern)[0]) == sorted(files):
            return pattern
    raise UserError(
        f"--data: no pattern leads to {files[0].name} and {files[1].name} without other files. Put "
        "the tables of each split into a separate folder, or give one of them."
    )


def _escaped(path: str) -> str:
    """Returns a path without the signs of patterns and of ranges such as {00..03}."""
    return glob.escape(path).replace("{", "[{]")


def _common_start(names: Sequence[str]) -> str:
    pairs = zip(min(names), max(names), strict=False)
    return "".join(x for x, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _by_column(found: FoundData) -> FoundData:
    """Divides data of one split by a column that names the split of each row."""
    (split, *others) = found.splits.values()
    name = next((x for x in split.table.columns or () if x.lower() in SPLIT_COLUMNS), "")
    if others or not name:
        return found
    values = _values(split.table, name)
    words = {x: SPLITS.get(str(x).strip().lower(), "") for x in set(values)}
    if "train" not in words.values() or len(set(words.values()) - {""}) < 2:
        return found
    splits, notes = {}, [f"column {name!r} names the split of each record"]
    for word in ("train", "validation", "test", ""):
        own = [x for x in words if words[x] == word]
        rows = np.array([i for i, x in enumerate(values) if words[x] == word], np.int64)
        if word and own:
            where = (f"{name}={own[0]}",) if len(own) == 1 and None not in words else ()
            splits[word] = replace(split, where=where, rows=rows)
        elif own:
            notes.append(f"{len(rows):,} records left out: their {name!r} is no known split")
    return replace(found, splits=splits, notes=[*found.notes, *notes])


def _values(table: Table, name: str) -> list[Any]:
    """Returns the values of a column; None in damaged rows."""
    column, values = table.column(name), []
    for index in range(len(table) if column is None else 0):
        try:
            values.append(str(table.row(index, (name,)).get(name)))
        except Damaged:
            values.append(None)
    return values if column is None else column.to_pylist()
