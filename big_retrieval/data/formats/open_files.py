"""Opens files of records by their paths and endings."""

import functools
import glob
import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.pictures import is_folder_of_shards, open_pictures
from big_retrieval.data.formats.tables import Arrays, Chain, Table
from big_retrieval.data.formats.views import InFolder
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.delimited import delimited
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import JSON_LINES
from big_retrieval.data.stores.parquet import PARQUET
from big_retrieval.data.stores.tar import TAR
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular

COMMAS = 3  # maximum number in the path of a file
PAIRS_ADVICE = "write one JSON object per line with an image path and captions"
TRY = "Add :runlocal to the name of the config to try it on generated data."
ENDINGS = (
    ".jsonl, .ndjson, .csv, .tsv, .parquet, .npz, .tar, or a folder of array_record shards or of "
    "pictures"
)
READERS: dict[str, Reader] = {
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".csv": delimited(","),
    ".tsv": delimited("\t"),
    ".parquet": PARQUET,
    ".tar": TAR,
}


def find_files(pattern: str, how_to_get: str, advice: str = PAIRS_ADVICE) -> list[Path]:
    """Returns the files of a path, pattern or {00..99} range; errors advise `how_to_get`."""
    if not pattern:
        raise UserError("the data source needs a path, e.g. --config.data.path=pairs.jsonl.")
    paths, missing = expand(pattern)
    if missing:
        text = f"the data {missing[0]} is not on this machine. Check the path, or "
        raise UserError(text + (f"{how_to_get}. {TRY}" if how_to_get else f"{advice}."))
    return paths


def files_of_flag(flag: str, patterns: str) -> list[Path]:
    """Returns the files of comma-separated paths, patterns and {00..99} ranges, in order."""
    paths = []
    for pattern in split_paths(patterns):
        files, missing = expand(pattern)
        if missing:
            raise UserError(f"--{flag}: there is no file {missing[0]!r}; check the path.")
        paths += files
    return paths


def split_paths(patterns: str) -> list[str]:
    """Splits paths at commas; the path of an existing file may contain commas."""
    parts, paths = patterns.split(","), []
    while parts:
        joined = (",".join(parts[:count]).strip() for count in range(1, COMMAS + 2))
        path = next(filter(os.path.exists, joined), parts[0].strip())
        paths.append(path)
        parts = parts[path.count(",") + 1 :]
    return paths


def expand(pattern: str) -> tuple[list[Path], list[str]]:
    """Returns the files of a path, a pattern or a {00..99} range, and the paths without a file.

    Raises:
      UserError: a file is not a regular file or a folder, or a range is reversed.
    """
    files, missing = [], []
    # The name of an existing file is not a pattern, although it may have brackets and braces.
    for path in [pattern] if os.path.exists(pattern) else _ranges(pattern):
        names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        matches = [Path(name) for name in names if Path(name).exists()]
        for match in matches:
            check_regular(match, folders=True)
        files += matches
        missing += [] if matches else [path]
    return files, missing


def _ranges(pattern: str) -> list[str]:
    """Expands ranges such as `{000..011}`, whose numbers have the digits of the first."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if int(first) > int(last):
        raise UserError(f"The range {match[0]} of a path is reversed. Use {{{last}..{first}}}.")
    infixes = [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    endings = _ranges(pattern[match.end() :])
    return [pattern[: match.start()] + infix + end for infix in infixes for end in endings]


def terms_of(terms: Sequence[str]) -> dict[str, str]:
    """Returns column -> value of terms such as "split=train"."""
    return {column: value for column, _, value in (term.partition("=") for term in terms)}


def table_of(
    paths: list[Path], form_of: Callable[[Path], Table | Reader] | None = None, image: str = ""
) -> tuple[Table, dict[str, Any]]:
    """Returns the rows of all files, and class names by label column.

    Args:
      paths: files, or folders of shards or of pictures.
      form_of: opens a file, or returns the reader of its store; None selects by the file ending.
        Consecutive files of one folder with the same reader share a store.
      image: column of image paths, which start from the folder of their file. They become absolute
        if the files are in several folders.
    """
    tables, classes = [], {}
    has_folders = any(path.parent != paths[0].parent for path in paths)
    forms = [None if path.is_dir() else (form_of or by_ending)(path) for path in paths]
    groups = itertools.groupby(zip(paths, forms, strict=True), _group)
    for (folder, _), group in groups:
        (path, form), *more = group
        if isinstance(form, Reader):
            table: Table = open_store([path, *(file for file, _ in more)], form)
        elif form is None:
            table, names = _folder(path)
            classes |= names
        else:
            table = form
        if not len(table):
            raise UserError(f"{path} has no rows; give a file with at least one record.")
        tables.append(InFolder(table, folder, image) if has_folders and image else table)
    if len(tables) == 1:
        return tables[0], classes
    return Chain(tables, paths[0].parent.name), classes


def _group(file: tuple[Path, Table | Reader | None]) -> tuple[Path, Reader | Path]:
    """Returns the folder, and the reader or else the file; equal for files of one store."""
    path, form = file
    return path.parent, form if isinstance(form, Reader) else path


def _folder(path: Path) -> tuple[Table, dict[str, Any]]:
    if not is_folder_of_shards(path):
        return open_pictures(path), {}
    from big_retrieval.data.formats.shards import open_folder  # its library is slow to import

    table, index = open_folder(path)
    return table, {key: tuple(names) for key, names in index["classes"].items()}


def file_table(path: Path, form_of: Callable[[Path], Table | Reader] | None = None) -> Table:
    """Returns the rows of one file; `form_of` as in `table_of`."""
    form = (form_of or by_ending)(path)
    return open_store([path], form) if isinstance(form, Reader) else form


def by_ending(path: Path) -> Table | Reader:
    """Returns the table of a file, or the reader of its store."""
    status = check_regular(path)
    ending = path.suffix.lower()
    if ending in READERS:
        return READERS[ending]
    if ending == ".npz":
        return _arrays(path, status.st_size, status.st_mtime_ns)
    raise UserError(f"{path} is of no known kind; known: {ENDINGS}.")


@functools.lru_cache(maxsize=16)
def _arrays(path: Path, size: int, changed: int) -> Arrays:
    """Opens a file once for all sources that read it; opens a changed file again."""
    del size, changed
    return Arrays(path)
