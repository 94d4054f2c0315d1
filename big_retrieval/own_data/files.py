"""What lies at a path: tables, tars, or pictures with captions beside them, and their splits."""

import contextlib
import glob
import itertools
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from big_retrieval.data.formats.folders import IMAGES, is_folder_of_shards, walk
from big_retrieval.data.formats.open_files import expand, table_of
from big_retrieval.data.formats.pictures import CAPTIONS, picture_rows
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.errors import Damaged, UserError
from big_retrieval.own_data.delimited import JSON, ending_of, is_caption_file, read_delimited
from big_retrieval.own_data.layouts import read_layout
from big_retrieval.own_data.roots import PEEKED, with_images
from big_retrieval.own_data.splits import COLUMNS, DataFiles, FoundData, grouped, split_of

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".npz")
CAPTION_TABLES = (".txt", ".token")  # where their lines have a picture's file
TARS = (".tar",)
NO_DATA = re.compile(r"(dataset_(info|infos|dict)|state|.*_stats)\.json")  # beside data, of tools
JOINED = "joined"  # the file that they are joined into
MOST_JOINED = 4  # tables that a user is told how to join
MANY_FILES = 1000  # text files; of more, none is looked into for being a table
READERS = {  # of pandas, that join tables
    ".csv": "read_csv('{}')",
    ".tsv": "read_csv('{}', sep='\\t')",
    ".jsonl": "read_json('{}', lines=True)",
    ".parquet": "read_parquet('{}')",
}
KNOWN = (
    "pictures with text files beside them (cat.jpg and cat.txt), .csv, .tsv, .jsonl, .json, "
    ".parquet, .npz, or .tar shards"
)
UNPACK = "unpack it first, such as by `{} {}`, and give the folder of its files"
PARQUET = "write it as Parquet first: {}.to_parquet('train.parquet')"
REMEDIES = {  # ending of a file that is not read -> what to do
    ".zip": UNPACK.format("unzip", "{}"),
    ".gz": UNPACK.format("gunzip", "{}"),
    **dict.fromkeys((".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"), UNPACK.format("tar -xf", "{}")),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "export its table as CSV"),
    **dict.fromkeys((".pdf", ".docx", ".html"), "write its texts into a table, such as a CSV file"),
    ".arrow": PARQUET.format("datasets.load_from_disk('{parent}')"),
    ".feather": PARQUET.format("pandas.read_feather('{}')"),
    **dict.fromkeys((".h5", ".hdf5"), PARQUET.format("pandas.read_hdf('{}')")),
    **dict.fromkeys((".pkl", ".pickle"), PARQUET.format("pandas.read_pickle('{}')")),
    ".tfrecord": "give a config with `config.Tfds` (docs/DATA.md), or write it as Parquet first",
}


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
    files = [each.resolve() if ".." in each.parts else each.absolute() for each in given]
    if len(files) == 1 and files[0].is_dir():
        return _folder(files[0], leave_out)
    odd = [file for file in files if not _is_table(file) and ending_of(file) not in TARS]
    if odd:
        raise UserError(
            f"--data: {odd[0]} is of no known form: {_remedy(odd) or f'known are {KNOWN}'}."
        )
    folder = Path(os.path.commonpath({file.parent for file in files}))
    return read_layout(files, folder) or _of_files(files, folder)


def _remedy(files: Sequence[Path]) -> str:
    """What to do with the first file for which that is known; ""."""
    known = (file for file in files if ending_of(file) in REMEDIES)
    return next((REMEDIES[ending_of(x)].format(x, parent=x.parent) for x in known), "")


def _is_table(file: Path) -> bool:
    ending = ending_of(file)
    return ending in TABLES or (
        ending in CAPTION_TABLES and file.is_file() and is_caption_file(file)
    )


def _folder(folder: Path, leave_out: Path | None) -> FoundData:
    if is_folder_of_shards(folder):
        table, _ = table_of([folder])
        return FoundData("a table", {"train": DataFiles(table, str(folder), folder)})
    files = walk(folder, leave_out)
    images = [file for file in files if ending_of(file) in IMAGES]
    names = {file.stem for file in images}
    beside = {file for file in files if file.stem in names and ending_of(file) in CAPTIONS}
    others = [file for file in files if file not in beside and ending_of(file) not in IMAGES]
    layout = read_layout(others, folder)
    if layout is not None:
        return layout
    tars = [file for file in files if ending_of(file) in TARS]
    if tars:
        return _of_files(tars, folder)
    texts = [file for file in files if ending_of(file) in CAPTIONS]
    captioned = {file.with_suffix("") for file in texts} & {x.with_suffix("") for x in images}
    tables, lower = _tables(others)
    if tables and len(captioned) < 0.5 * max(1, len(images)):
        found = _of_files(tables, folder)
        found.notes.extend([_lower(lower, folder)] if lower else [])
        return found
    if not images:
        held = sorted({ending_of(file) or "files without an ending" for file in files})
        what = f"only {', '.join(held[:8])}" if held else "nothing"
        what += f": {_remedy(files)}" if _remedy(files) else f"; wanted are {KNOWN}"
        raise UserError(f"--data: {folder} holds {what}.")
    found = _pictures(folder, images, texts)
    if tables:
        found.notes.append(f"{tables[0].name}: left out, as pictures have texts of their names")
    return found


def _tables(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The tables that lie highest and the others, without what tools write beside data."""
    sure = [x for x in files if ending_of(x) in TABLES and not NO_DATA.fullmatch(x.name)]
    if not sure:
        perhaps = [x for x in files if ending_of(x) in CAPTION_TABLES]
        sure = [x for x in perhaps if len(perhaps) <= MANY_FILES and _is_table(x)]
    least = min((len(file.parts) for file in sure), default=0)
    highest = [file for file in sure if len(file.parts) == least]
    return highest, [file for file in sure if len(file.parts) > least]


def _lower(lower: Sequence[Path], folder: Path) -> str:
    """What to say of tables that are left out, as they lie lower than others."""
    what = f"{len(lower):,} tables that lie lower are"
    what = "1 table that lies lower is" if len(lower) == 1 else what
    shared = Path(os.path.commonpath({file.parent for file in lower}))
    there = shlex.quote(str(lower[0].parent if shared == folder else shared))
    every = shlex.quote(f"--data={glob.escape(str(folder))}/**/*{lower[0].suffix}")
    return (
        f"{what} left out (such as {lower[0].relative_to(folder)}): --data={there} takes those "
        f"there, {every} takes all"
    )


def _of_files(files: Sequence[Path], folder: Path) -> FoundData:
    """Tables or tars, grouped by splits."""
    groups, notes = grouped(files, folder)
    splits = {name: _opened(group, notes) for name, group in groups.items()}
    form = "tar shards" if ending_of(groups["train"][0]) in TARS else "a table"
    return FoundData(form, splits, notes)


def _opened(files: Sequence[Path], notes: list[str]) -> DataFiles:
    """Several files of one form as one table.

    Raises:
      UserError: their columns differ, or one has no rows.
    """
    if len(files) > 1:
        _check_alike(files)
    plain: list[str] = []
    folders = {file.parent for file in files}

    def opened(file: Path) -> Table:
        table = read_delimited(file, plain)
        whole = with_images(file, table, len(folders) > 1) if len(files) > 1 else table
        plain.extend([""] * (whole is not table))  # no source reads it as it is
        return whole

    table, _ = table_of(list(files), opened)
    pattern = str(files[0]) if len(files) == 1 else _pattern(files)
    notes += [note for note in plain if note]
    return DataFiles(table, "" if plain else pattern, Path(os.path.commonpath(folders)))


def _columns_of(file: Path) -> set[str]:
    """The columns of a table, or those of its first rows where they may differ."""
    table, found = read_delimited(file, []), set[str]()
    for index in range(min(PEEKED, len(table)) if table.columns is None else 0):
        with contextlib.suppress(Damaged):
            found |= set(table.row(index))
    return found if table.columns is None else set(table.columns)


def _check_alike(files: Sequence[Path]) -> None:
    if {ending_of(file) for file in files} <= {*TARS}:
        return
    first, columns = files[0], {file: _columns_of(file) for file in files[:20]}
    for file, names in columns.items():
        same = names == columns[first]
        if ending_of(file) in JSON:  # rows may lack some
            same = names <= columns[first] or columns[first] <= names
        if same and ending_of(file) == ending_of(first):
            continue
        listed = "; ".join(
            f"{file.name} ({', '.join(sorted(columns[file])) or 'no columns'})"
            for file in (first, file)
        )
        joined = next((each for each in files if each.stem == JOINED), None)
        join = "" if joined or len(files) > len(columns) else _join(columns)
        raise UserError(
            f"--data: {first.parent} holds tables that differ: {listed}; give one of them "
            f"(--data={joined or first}){join}."
        )


def _join(columns: Mapping[Path, Collection[str]]) -> str:
    """How to make one table of some, if one of them has a column in common with each of the others.

    Args:
      columns: of each file.
    """
    (ending, *others) = {ending_of(file) for file in columns}
    if others or ending not in READERS or len(columns) > MOST_JOINED:
        return ""
    reader = f"pandas.{READERS[ending]}".format
    for base in columns:
        keys = {
            file: sorted(name for name in names if name in columns[base] and name not in COLUMNS)
            for file, names in columns.items()
            if file != base
        }
        if all(keys.values()):
            merged = "".join(f".merge({reader(x.name)}, on={y[0]!r})" for x, y in keys.items())
            return (
                f", or join them to one table by the columns that they share: {reader(base.name)}"
                f"{merged}.to_csv('{JOINED}.csv', index=False), and give that file"
            )
    return ""


def _pattern(files: Sequence[Path]) -> str:
    """A pattern that leads to these files and no other; "" where there is none."""
    folders, endings = {file.parent for file in files}, {file.suffix for file in files}
    if len(folders) > 1 or len(endings) > 1:
        return ""
    pairs = zip(min(file.name for file in files), max(file.name for file in files), strict=False)
    start = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    folder, start = glob.escape(str(files[0].parent)), glob.escape(start)
    pattern = f"{folder}/{start}*{files[0].suffix}"
    found, _ = expand(pattern)
    return pattern if found == sorted(files) else ""


def _pictures(folder: Path, images: Sequence[Path], texts: Sequence[Path]) -> FoundData:
    """Pictures with text files, as rows that have to be written."""
    groups, notes = grouped(images, folder)
    whole = all(split_of(folder / image.relative_to(folder).parts[0], folder) for image in images)
    if not whole or len(groups) < 2:  # such as pictures of trains among others
        groups, notes = {"train": list(images)}, []
    splits = {}
    for name, group in groups.items():
        rows, told = picture_rows(group, texts, folder)
        notes += told
        splits[name] = DataFiles(Rows(rows, folder.name), "", folder)
    return FoundData("pictures", splits, notes)
