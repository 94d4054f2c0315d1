"""Published data sets (`catalogue.toml`): where to fetch them, and whether a folder is complete.

`big-retrieval data get NAME` prints an entry, `big-retrieval data check NAME` compares a folder.
"""

import difflib
import functools
import hashlib
import json
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import JSON_LIST, json_reader
from big_retrieval.errors import UserError
from big_retrieval.io.regular import check_regular

Entry = dict[str, Any]  # a table of catalogue.toml, whose head describes the keys
CHUNK = 1 << 24  # bytes per read


@functools.cache
def read_catalogue() -> dict[str, Entry]:
    """Returns the entries by name."""
    file = resources.files("big_retrieval.data") / "catalogue.toml"
    return tomllib.loads(file.read_text("utf-8"))


def get(name: str) -> None:
    """Prints the downloads of a data set and their folder; without a name, prints all names."""
    if not name:
        width = max(map(len, read_catalogue()))
        for key, entry in read_catalogue().items():
            print(f"{key:<{width}}  {entry['title']}")
        print("big-retrieval data get NAME prints where to fetch a data set and where to put it")
        return
    entry = _find_by_name(name)
    print(entry["title"])
    print(f"license   {entry['license']}")
    print(f"size      {entry['size']}")
    for file in entry["fetch"]:
        md5 = f" (MD5 {file['md5']})" if "md5" in file else ""
        print(f"fetch     {file['what']}: {file['address']}{md5}")
    for step in entry["steps"]:
        print(f"then      {step}")
    print(f"into      {entry['folder']}, for the configs {entry['configs']}")
    print(f"check     big-retrieval data check {name} --data={entry['folder']}")


def check(name: str, folder: str) -> None:
    """Prints which parts of a folder are complete.

    Args:
      folder: empty for the folder that the configs read.

    Raises:
      UserError: an unknown data set, no such folder, or the folder is incomplete.
    """
    entry = _find_by_name(name)
    differences, path = 0, Path(folder or entry["folder"])
    for entry_part, contents, difference in compare(entry["parts"], path):
        differences += bool(difference)
        state = difference or ("ok" if contents else "optional")
        print(f"{entry_part['path']:<32}  {contents or 'none'}: {state}", flush=True)
    if differences:
        raise UserError(
            f"{path} is incomplete: {differences} of {len(entry['parts'])} parts are missing or "
            f"differ. See `big-retrieval data get {name}`."
        )
    print(f"{path} is complete: all parts match the catalogue's entry {name}")


def _find_by_name(name: str) -> Entry:
    catalogue = read_catalogue()
    if name not in catalogue:
        near = difflib.get_close_matches(name, catalogue, 1)
        hint = f"Did you mean {near[0]}?" if near else "`big-retrieval data get` lists all names."
        raise UserError(f"Unknown data set {name!r}. {hint}")
    return catalogue[name]


def compare(parts: list[Entry], folder: Path) -> Iterator[tuple[Entry, str, str]]:
    """Yields each part, its contents in the folder, and the difference; both may be empty."""
    if not folder.is_dir():
        raise UserError(
            f"Not a folder: {folder}. Give the folder of the data set as --data=FOLDER."
        )
    for part in parts:
        files = sorted(folder.glob(part["path"]))
        if files:
            yield part, *_compare_files(part, files)
        else:
            yield part, "", "" if part.get("optional") else "missing"


def _compare_files(part: Entry, files: list[Path]) -> tuple[str, str]:
    first = files[0]
    check_regular(first, folders=True)
    counts = {"files": len(files)}
    for key, count in (("lines", _lines), ("records", _records), ("queries", _queries)):
        if key in part:
            counts[key] = count(first)
    differences = [
        f"{count:,} of {part[key]:,} {key}"
        for key, count in counts.items()
        if count != part.get(key, count)
    ]
    if suffix := part.get("sidecar"):
        lone = [file.name for file in files if not file.with_name(file.stem + suffix).is_file()]
        if lone:
            differences.append(f"{len(lone):,} are not finished, the first one is {lone[0]}")
    if "md5" in part and _md5(first) != part["md5"]:
        differences.append(f"its MD5 is not {part['md5']}: fetch it again")
    contents = [f"{count:,} {key}" for key, count in counts.items() if key != "files" or count > 1]
    return ", ".join(contents) or "there", "; ".join(differences)


def _lines(path: Path) -> int:
    """Counts lines; the last line may have no line end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def _records(path: Path) -> int:
    """Counts the objects in the list of a JSON file, or in the list `images` of its object."""
    if json_reader(path) is JSON_LIST:
        return len(open_store([path], JSON_LIST))
    try:
        return len(json.loads(path.read_bytes())["images"])
    except (ValueError, KeyError, TypeError):
        return 0


def _queries(path: Path) -> int:
    """Counts the distinct values of the first column, without the header line."""
    with path.open(encoding="utf-8") as file:
        next(file, None)
        return len({line.partition("\t")[0] for line in file if line.strip()})


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
