"""Opens files of records by their paths and endings."""

import functools
import glob
import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.npz import Arrays
from big_retrieval.data.formats.pictures import is_folder_of_shards, open_pictures
from big_retrieval.data.formats.tables import Chain, Table
from big_retrieval.data.formats.views import InFolder
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.delimited import delimited
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import JSON_LINES
from big_retrieval.data.stores.parquet import PARQUET
from big_retrieval.data.stores.tar import TAR
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular

COMMAS = 3  # in the path of a file, at most
TRY = "try the same config small and on generated data with :runlocal behind its file name"
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


def files_of(pattern: str, how_to_get: str) -> list[Path]:
    """The files of a path, a pattern or a {00..99} range, in order.

    Raises:
      UserError: there is none.
    """
    if not pattern:
        raise UserError("the data source needs a path, e.g. --config.data.path=pairs.jsonl.")
    found, missing = expand(pattern)
    if missing:
        raise UserError(
            _advice(f"the data {missing[0]} is not on this machine: check the path", how_to_get)
        )
    return found


def files_of_flag(flag: str, patterns: str) -> list[Path]:
    """The files of paths, patterns and {00..99} ranges that are separated by commas, in order.

    Raises:
      UserError: there is none; the sentence names the flag.
    """
    paths = []
    for pattern in split_paths(patterns):
        found, missing = expand(pattern)
        if missing:
            raise UserError(f"--{flag}: there is no file {missing[0]!r}; check the path.")
        paths += found
    return paths


def split_paths(patterns: str) -> list[str]:
    """Paths that are separated by commas; one of a file that is there may have some itself."""
    parts, found = patterns.split(","), []
    while parts:
        joined = (",".join(parts[:count]).strip() for count in range(1, COMMAS + 2))
        path = next(filter(os.path.exists, joined), parts[0].strip())
        found.append(path)
        parts = parts[path.count(",") + 1 :]
    return found


def expand(pattern: str) -> tuple[list[Path], list[str]]:
    """The files of a path, a pattern or a {00..99} range, in order, and what leads to none.

    Raises:
      UserError: something else than a regular file or a folder, such as a named pipe.
    """
    found, missing = [], []
    # What is there is no pattern, whatever brackets and braces its name has.
    for path in [pattern] if os.path.exists(pattern) else _ranges(pattern):
        names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        here = [Path(name) for name in names if Path(name).exists()]
        for each in here:
            check_regular(each, folders=True)
        found += here
        missing += [] if here else [path]
    return found, missing


def _ranges(pattern: str) -> list[str]:
    """`{000..011}` written out, each with as many digits."""
    parts = re.split(r"\{(\d+)\.\.(\d+)\}", pattern)
    plain, firsts, lasts = parts[::3], parts[1::3], parts[2::3]
    numbers = [
        [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
        for first, last in zip(firsts, lasts, strict=True)
    ]
    return [
        "".join(itertools.chain(*itertools.zip_longest(plain, chosen, fillvalue="")))
        for chosen in itertools.product(*numbers)
    ]


def _advice(problem: str, how_to_get: str) -> str:
    how = how_to_get or "write one JSON object a line with an image path and captions"
    return f"{problem}, or {how}; or {TRY}."


def terms_of(terms: Sequence[str]) -> dict[str, str]:
    """Returns column -> value of terms such as "split=train"."""
    return {column: value for column, _, value in (term.partition("=") for term in terms)}


def table_of(
    paths: list[Path], form_of: Callable[[Path], Table | Reader] | None = None, image: str = ""
) -> tuple[Table, dict[str, Any]]:
    """The rows of all files, and the classes that they know.

    Args:
      paths: files, or folders of shards or of pictures.
      form_of: opens a file, or returns the reader of its store; None: by its ending. Neighbouring
        files of one reader in one folder have one store.
      image: the column of image paths. They start from the folder of their own file: of files in
        several folders they are made whole.

    Raises:
      UserError: a file that cannot be read, or has no rows.
    """
    tables, classes = [], {}
    several = any(path.parent != paths[0].parent for path in paths)
    forms = [None if path.is_dir() else (form_of or by_ending)(path) for path in paths]
    groups = itertools.groupby(zip(paths, forms, strict=True), _group)
    for (folder, _), group in groups:
        (path, form), *others = group
        if isinstance(form, Reader):
            table: Table = open_store([path, *(other for other, _ in others)], form)
        elif form is None:
            table, known = _folder(path)
            classes |= known
        else:
            table = form
        if not len(table):
            raise UserError(f"{path} has no rows; give a file with at least one record.")
        tables.append(InFolder(table, folder, image) if several and image else table)
    if len(tables) == 1:
        return tables[0], classes
    return Chain(tables, paths[0].parent.name), classes


def _group(item: tuple[Path, Table | Reader | None]) -> tuple[Path, Reader | Path]:
    """Returns the folder and the reader, which neighbours share, or the folder and the file."""
    path, form = item
    return path.parent, form if isinstance(form, Reader) else path


def _folder(path: Path) -> tuple[Table, dict[str, Any]]:
    """The rows of a folder of shards or of pictures, and the classes that it knows."""
    if not is_folder_of_shards(path):
        return open_pictures(path), {}
    from big_retrieval.data.formats.shards import open_folder  # its library takes long to import

    table, index = open_folder(path)
    return table, {key: tuple(names) for key, names in index["classes"].items()}


def file_table(path: Path, form_of: Callable[[Path], Table | Reader] | None = None) -> Table:
    """The rows of one file.

    Raises:
      UserError: its kind is unknown, or it cannot be read.
    """
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
    """Opens a file once, however many sources read it."""
    del size, changed  # a file that differs in them is read again
    return Arrays(path)
