"""Files at a path, by split: tables, tar shards, pictures, or JSON files of a known layout."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.auto_config import layouts
from big_retrieval.config import Karpathy
from big_retrieval.data.formats.open_files import READERS, expand, table_of
from big_retrieval.data.formats.pictures import IMAGES, is_folder_of_shards, walk
from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime.messages import count_of

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
REMEDIES = {  # advice -> endings of files
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
      path: file, folder or pattern, as in a source.
      where: terms that select the rows, as in `config.Pairs`; empty for all rows, or if terms
        cannot select them.
      rows: indices of the rows, int64 [n]; None for all.
      source: for a Karpathy split file.
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
    """Data at a path: form and messages for logs, and records of "train" and other splits."""

    form: str
    splits: dict[str, DataSplit]
    notes: list[str] = field(default_factory=list)


def find(data: str, images: str, scratch: Path, leave_out: Path | None = None) -> FoundData:
    """Opens the data at a path.

    Args:
      images: folder of the pictures of COCO and Karpathy files; empty for the folder of the file.
      scratch: folder for the captions of COCO as JSON lines.
      leave_out: folder whose files are ignored, such as the run folder.
    """
    paths, missing = expand(data)
    if missing:
        raise UserError(f"--data: there is no file or folder {missing[0]!r}. Check the path.")
    files = [path.resolve() if ".." in path.parts else path.absolute() for path in paths]
    is_folder = len(files) == 1 and files[0].is_dir()
    folder = files[0] if is_folder else Path(os.path.commonpath({x.parent for x in files}))
    files = walk(folder, leave_out) if is_folder else files
    pictures = {file.stem for file in files if file.suffix.lower() in IMAGES}
    unpaired = [file for file in files if file.stem not in pictures]
    for file in unpaired:
        if layouts.has_layout(file, layouts.KARPATHY):
            splits = {}
            for name, source in layouts.karpathy_sources(file, images).items():
                built: Any = source.build()
                splits[name] = DataSplit(str(file), built.table, source=source)
            return FoundData("a Karpathy split file", splits)
    coco = [file for file in unpaired if layouts.has_layout(file, layouts.COCO)]
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
    endings = {file.suffix.lower() for file in files}
    return next((x for x, suffixes in REMEDIES.items() if not endings.isdisjoint(suffixes)), KNOWN)


def _folder(folder: Path, files: Sequence[Path]) -> FoundData:
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
    endings = ", ".join(sorted(by_ending.keys() - {""})[:8])
    content = f"only {endings}" if endings else "no data"
    raise UserError(f"--data: {folder} holds {content}: {_remedy(files)}.")


def _pictures(folder: Path, images: Sequence[Path]) -> FoundData:
    """Returns the pictures of a folder, by split if all its subfolders have names of splits."""
    tops = sorted({image.relative_to(folder).parts[0] for image in images})
    by_split = {split_word(top): folder / top for top in tops if (folder / top).is_dir()}
    if len(by_split) < len(tops) or not {"train"} < by_split.keys() - {""}:
        by_split = {"train": folder}
    splits = {x: DataSplit(str(path), table_of([path])[0]) for x, path in by_split.items()}
    return FoundData("pictures", splits)


def split_word(name: str) -> str:
    """Returns the split of a name, such as "train" for train2017, or ""."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def _of_files(files: Sequence[Path], folder: Path, pattern: str) -> FoundData:
    """Returns the splits of tables or tar shards, by the names of files or folders."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        names = [file.stem, *reversed(file.relative_to(folder).parts[:-1])]
        groups.setdefault(next(filter(None, map(split_word, names)), ""), []).append(file)
    unnamed, notes = groups.pop("", []), []
    if not groups or (len(groups) == 1 and not unnamed):
        groups = {"train": list(files)}
    elif "train" in groups and unnamed:
        names = ", ".join(file.name for file in unnamed[:3])
        notes.append(f"{names} left out: their names have no split, but the names of others do")
    elif "train" not in groups:
        groups = {"train": unnamed, **groups}
    if not groups["train"]:
        names = ", ".join(file.name for file in files[:3])
        raise UserError(f"--data: {names}: no file is for training. Call it train.")
    splits = {}
    for split, group in groups.items():
        if len(groups) > 1:
            label = group[0].name if len(group) == 1 else f"{len(group):,} files"
            notes.append(f"{label} for {split}")
        path = _path_of(group, pattern if len(groups) == 1 else "")
        splits[split] = DataSplit(path, table_of(group)[0])
    form = "tar shards" if files[0].suffix.lower() == TAR else "tables"
    return FoundData(form, splits, notes)


def _path_of(files: Sequence[Path], user_pattern: str) -> str:
    """Returns the file, or a pattern that matches these files and no other."""
    if len(files) == 1:
        return str(files[0])
    folder = _escaped(os.path.commonpath({file.parent for file in files}))
    prefix = os.path.commonprefix([file.stem for file in files])  # noqa: RUF071 (of characters)
    name = f"{_escaped(prefix)}*{files[0].suffix}"
    user_pattern = user_pattern and os.path.abspath(user_pattern)
    for pattern in (f"{folder}/{name}", f"{folder}/**/{name}", user_pattern):
        if pattern and sorted(expand(pattern)[0]) == sorted(files):
            return pattern
    raise UserError(
        f"--data: no pattern matches {files[0].name} and {files[1].name} without other files. Put "
        "the tables of each split into a separate folder, or give one of them."
    )


def _escaped(path: str) -> str:
    """Escapes the characters of patterns and of ranges such as {00..03}."""
    return glob.escape(path).replace("{", "[{]")


def _by_column(data: FoundData) -> FoundData:
    """Divides data without splits by a column of split names."""
    (split, *other_splits) = data.splits.values()
    name = next((x for x in split.table.columns or () if x.lower() in SPLIT_COLUMNS), "")
    if other_splits or not name:
        return data
    values = _values(split.table, name)
    split_names = {x: SPLITS.get(str(x).strip().lower(), "") for x in set(values)}
    if "train" not in split_names.values() or len(set(split_names.values()) - {""}) < 2:
        return data
    splits, notes = {}, [f"column {name!r} names the split of each record"]
    for word in ("train", "validation", "test", ""):
        cells = [x for x in split_names if split_names[x] == word]
        rows = np.array([i for i, x in enumerate(values) if split_names[x] == word], np.int64)
        if word and cells:
            where = (f"{name}={cells[0]}",) if len(cells) == 1 and None not in split_names else ()
            splits[word] = replace(split, where=where, rows=rows)
        elif cells:
            count = count_of(len(rows), "record")
            notes.append(f"{count} left out: the value of {name!r} is not a known split")
    return replace(data, splits=splits, notes=[*data.notes, *notes])


def _values(table: Table, name: str) -> list[Any]:
    column, values = table.column(name), []
    for index in range(len(table) if column is None else 0):
        try:
            values.append(str(table.row(index, (name,)).get(name)))
        except Damaged:
            values.append(None)
    return values if column is None else column.to_pylist()
