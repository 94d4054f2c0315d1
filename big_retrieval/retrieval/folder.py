"""The folder of an index: what is in it, how it is finished, how it is checked.

    index.json       what the index is (`About`)
    origin.json      what it was made from (`preparing.origin`), where `big-retrieval index` made it
    manifest.json    size and SHA-256 of every other file; written last
    ids.npy, ids_ends.npy            ids of the documents, by number (`files.Texts`)
    texts.npy, texts_ends.npy        the beginning of each document's text, to be shown
    store.json, store-*.arrow        whole texts and paths of images (`DocumentRow.stored`)
    tokenizer.json, terms.npy        of lexical indexes: from a text to term ids, without a model
    pointers.npy, documents.npy, values.npy   of inverted ones (`inverted.py`)
    embeddings.npy                       of dense ones (`dense.py`)

An index is written as `<folder>.partial` and renamed at the end: a folder with its final name is
complete.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.runtime import building

ABOUT, ORIGIN = "index.json", "origin.json"
VERSION = 3  # of the format
INVERTED, DENSE = "inverted", "dense"
SMALL = 16 * 2**20  # bytes up to which a file's checksum is verified whenever an index is opened
REBUILD = "build it again with big-retrieval index"


@dataclass(frozen=True)
class About:
    """What an index is.

    Attributes:
      kind: "inverted" or "dense".
      topology: of the embeddings in a dense index, as a config.json has it.
      values: type of the values in an inverted index: "float32", "float16", or "binary": all values
        are 1 and not stored.
      bags: whether documents are bags of words, which no network encoded.
      terms: V of an inverted index.
      terms_sha256: `Terms.fingerprint()` of an inverted index.
      documents: how many.
      entries: how many values an inverted index has.
      field: the model's field that encoded the documents; several are joined by commas.
      query_field: the field that encodes queries unless the user names another.
      query_column: the column that this field reads in training.
      query_length: tokens that a query is cut to, special tokens included.
      checkpoint: folder of the model that encoded the documents.
      params_sha256: SHA-256 of the model's parameters; "": no network was run.
      files: paths and patterns of the documents' files, absolute, separated by commas; "": unknown.
        They may have gone since. Only images that are no files of their own are read from them.
      version: of the format.
    """

    kind: str
    topology: str | Mapping[str, Any] = ""
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
    """The manifest, which tells this index from another at the same path; empty if missing."""
    try:
        return (folder / manifest.MANIFEST).read_bytes()
    except OSError:
        return b""


def made_from(folder: Path) -> dict[str, Any] | None:
    """What an index was made from (`preparing.origin`); None: unknown, or it cannot be read."""
    try:
        found = json.loads((folder / ORIGIN).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def check_same(folder: Path, opened: bytes) -> None:
    """Raises if another index has replaced the opened one.

    Args:
      folder: the index.
      opened: `stamp` of the folder before its files were opened.

    Raises:
      UserError: files that were opened since then may belong to the other index.
    """
    if stamp(folder) != opened:
        raise UserError(
            f"the index {folder} was replaced or removed while it was in use; open it again."
        )


def begin(folder: Path) -> Path:
    """`building.begin` of an index, which a killed build may have left without a mark."""
    return building.begin(folder, ABOUT)


def finish(partial: Path, folder: Path, about: About | None = None) -> None:
    """Writes index.json and the manifest durably, and gives the folder its name."""
    if about is not None:
        (partial / ABOUT).write_bytes(manifest.to_json(dataclasses.asdict(about)))
    building.give_name(partial, folder, listed=True)


def open_folder(folder: Path, *, verify: bool = False) -> About:
    """Checks an index folder: the size of every file, and the checksums of small ones.

    Args:
      folder: the index.
      verify: verify the checksums of all files.

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
