"""The folder of an index.

    index.json                   description of the index (`About`)
    origin.json                  model, documents and flags of the index (`index_work.origin`)
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.runtime import atomic_folder

ABOUT, ORIGIN = "index.json", "origin.json"
VERSION = 4  # of the format
INVERTED, DENSE = "inverted", "dense"
SMALL = 16 * 2**20  # maximum bytes of files whose checksums are verified at every opening
REBUILD = "Build it again with `big-retrieval index`"


@dataclass(frozen=True)
class About:
    """Description of an index."""

    kind: str  # "inverted" or "dense"
    topology: str | Mapping[str, Any] = ""  # topology of a dense index, as in config.json
    # Value type of an inverted index: "float32", "float16", or "binary" if all values are 1
    values: str = "float32"
    bags: bool = False  # documents are bags of words, encoded without a network
    terms: int = 0  # V of an inverted index
    terms_sha256: str = ""  # `BagOfWordsEncoder.fingerprint()` of an inverted index
    documents: int = 0  # number of documents
    entries: int = 0  # number of values of an inverted index
    field: str = ""  # document fields, separated by commas
    query_field: str = ""  # default field of queries
    query_column: str = ""  # column of this field in training
    # Maximum tokens per query, with special tokens; 0 for images
    query_length: int = 0
    checkpoint: str = ""  # folder of the model
    params_sha256: str = ""  # SHA-256 of the model's parameters; empty if no network was run
    # Paths and patterns of the documents' files, separated by commas; empty if unknown. Images
    # inside tables and shards are read from them, if they still exist.
    files: str = ""
    version: int = VERSION


def stamp(folder: Path) -> bytes:
    """Returns the manifest, which differs for another index at the same path; empty if missing."""
    try:
        return (folder / manifest.MANIFEST).read_bytes()
    except OSError:
        return b""


def made_from(folder: Path) -> dict[str, Any] | None:
    """Reads the origin of an index (`index_work.origin`); None if it is unknown."""
    try:
        content = json.loads((folder / ORIGIN).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def check_same(folder: Path, opened: bytes) -> None:
    """Raises a UserError if the `stamp` of an index is not `opened` any more."""
    if stamp(folder) != opened:
        raise UserError(f"Index {folder} was replaced or removed while in use. Open it again.")


def begin(folder: Path) -> Path:
    """Creates the temporary folder of an index; `finish` renames it."""
    return atomic_folder.begin(folder, ABOUT)


@contextlib.contextmanager
def begin_safely(folder: Path) -> Iterator[Path]:
    """Yields the folder of `begin`, and removes it after an error."""
    partial = begin(folder)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise


def finish(partial: Path, folder: Path, about: About | None = None) -> None:
    """Writes index.json and the manifest durably, and gives the folder its name."""
    if about is not None:
        (partial / ABOUT).write_bytes(manifest.to_json(dataclasses.asdict(about)))
    atomic_folder.give_name(partial, folder, listed=True)


def open_folder(folder: Path, *, verify: bool = False) -> About:
    """Checks the size of every file, and checksums of small files (of all files with `verify`)."""
    if not folder.is_dir():
        raise UserError(f"No index {folder}. {REBUILD}, or check the path.")
    if not (folder / manifest.MANIFEST).is_file() or not (folder / ABOUT).is_file():
        raise UserError(f"Not an index: {folder} has no {manifest.MANIFEST} or {ABOUT}. {REBUILD}.")
    reason = manifest.damage(folder, checksums_up_to=None if verify else SMALL)
    if reason is not None:
        raise UserError(f"Index {folder} is damaged ({reason}). {REBUILD}.")
    try:
        content = json.loads((folder / ABOUT).read_bytes())
        version = content["version"]
        about = About(**content) if version == VERSION else None
    except (ValueError, KeyError, TypeError):
        about, version = None, VERSION
    if version != VERSION:
        raise UserError(
            f"Index {folder} has format {version}, but this version of big_retrieval reads "
            f"{VERSION}. {REBUILD}."
        )
    if about is None or about.kind not in (INVERTED, DENSE):
        raise UserError(f"{folder / ABOUT} does not describe an index. {REBUILD}.")
    return about
