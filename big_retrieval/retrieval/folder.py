"""The folder of an index.

    index.json                   description of the index (`About`)
    origin.json                  what `big-retrieval index` built it from (`preparing.origin`)
    manifest.json                size and SHA-256 of every other file; written last
    store.json, store-*.arrow    ids, texts and paths of images (`DocumentRow.stored`)
    tokenizer.json, terms.npy    lexical indexes: from a text to term ids, without a model
    pointers.npy, documents.npy, values.npy    inverted indexes (`inverted.py`)
    embeddings.npy               dense indexes (`dense.py`)

An index is written as `<folder>.partial` and renamed at the end: a folder with its final name is
complete.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.runtime import building

ABOUT, ORIGIN = "index.json", "origin.json"
VERSION = 4  # of the format
INVERTED, DENSE = "inverted", "dense"
SMALL = 16 * 2**20  # bytes of a file whose checksum is verified whenever the index is opened
REBUILD = "build it again with big-retrieval index"


@dataclass(frozen=True)
class About:
    """Description of an index.

    Attributes:
      kind: "inverted" or "dense".
      topology: topology of a dense index, as in config.json.
      values: type of the values of an inverted index: "float32", "float16", or "binary" if all
        values are 1 and not stored.
      bags: True if documents are bags of words, encoded without a network.
      terms: V of an inverted index.
      terms_sha256: `BagOfWordsEncoder.fingerprint()` of an inverted index.
      documents: number of documents.
      entries: number of values of an inverted index.
      field: fields that encoded the documents, separated by commas.
      query_field: default field of queries.
      query_column: column of this field in training.
      query_length: maximum number of tokens of a query, with special tokens.
      checkpoint: folder of the model that encoded the documents.
      params_sha256: SHA-256 of the model's parameters; empty if no network was run.
      files: absolute paths and patterns of the documents' files, separated by commas; empty if
        unknown. Images in files of many are read from them, if these still exist.
    """

    kind: str
    topology: str = ""
    values: str = "float32"
    bags: bool = False
    terms: int = 0
    terms_sha256: str = ""
    documents: int = 0
    entries: int = 0
    field: str = ""
    query_field: str = ""
    query_column: str = ""
    query_length: int = 0
    checkpoint: str = ""
    params_sha256: str = ""
    files: str = ""
    version: int = VERSION


def stamp(folder: Path) -> bytes:
    """Returns the manifest, which differs for another index at the same path; empty if missing."""
    try:
        return (folder / manifest.MANIFEST).read_bytes()
    except OSError:
        return b""


def made_from(folder: Path) -> dict[str, Any] | None:
    """Reads what an index was built from (`preparing.origin`); None if that is unknown."""
    try:
        content = json.loads((folder / ORIGIN).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def check_same(folder: Path, opened: bytes) -> None:
    """Raises a UserError if another index has replaced the one whose `stamp` was `opened`."""
    if stamp(folder) != opened:
        raise UserError(
            f"the index {folder} was replaced or removed while it was in use; open it again."
        )


def begin(folder: Path) -> Path:
    """Begins to build an index, with `building.begin`; a killed build may have left no mark."""
    return building.begin(folder, ABOUT)


@contextlib.contextmanager
def removed_on_error(partial: Path) -> Iterator[Path]:
    """Removes the folder of `begin` if the context ends with an error."""
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise


def finish(partial: Path, folder: Path, about: About | None = None) -> None:
    """Writes index.json and the manifest durably, and gives the folder its name."""
    if about is not None:
        (partial / ABOUT).write_bytes(manifest.to_json(dataclasses.asdict(about)))
    building.give_name(partial, folder, listed=True)


def open_folder(folder: Path, *, verify: bool = False) -> About:
    """Checks an index folder: the size of every file, and checksums of small files (or of all).

    Raises:
      UserError: it is no index, damaged, or of another version.
    """
    if not folder.is_dir():
        raise UserError(f"there is no index {folder}; {REBUILD}, or check the path.")
    if not (folder / manifest.MANIFEST).is_file() or not (folder / ABOUT).is_file():
        raise UserError(
            f"{folder} is no index: it lacks {manifest.MANIFEST} or {ABOUT}; {REBUILD}."
        )
    problem = manifest.damage(folder, checksums_up_to=None if verify else SMALL)
    if problem is not None:
        raise UserError(f"the index {folder} is damaged ({problem}); {REBUILD}.")
    try:
        content = json.loads((folder / ABOUT).read_bytes())
        version = content["version"]
        about = About(**content) if version == VERSION else None
    except (ValueError, KeyError, TypeError):
        about, version = None, VERSION
    if version != VERSION:
        raise UserError(
            f"the index {folder} has format {version}, and this version of big_retrieval reads "
            f"{VERSION}; {REBUILD}."
        )
    if about is None or about.kind not in (INVERTED, DENSE):
        raise UserError(f"{folder / ABOUT} does not describe an index; {REBUILD}.")
    return about
