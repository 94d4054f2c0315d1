"""Files of arrays, and hashes of the texts that they belong to."""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.fields.texts import Text
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.handles import MappedFile
from big_retrieval.io.manifest import to_json
from big_retrieval.io.regular import check_regular


def open_store(file: str, *, again: bool = False) -> np.ndarray:
    """Returns a memory-mapped .npy file, opened once per process; nothing is unpickled.

    Call it before each read: reading a file that was cut would end the process.

    Args:
      again: True opens a changed file again; at the start of a run.

    Raises:
      UserError: the file is missing, not a .npy file, or was changed since it was opened.
    """
    mapped, store = _opened(file)
    try:
        mapped.check()
    except UserError:
        _opened.cache_clear()
        if not again:
            raise
        _, store = _opened(file)
    return store


@functools.lru_cache(maxsize=64)
def _opened(file: str) -> tuple[MappedFile, np.ndarray]:
    try:
        check_regular(file)
        mapped = MappedFile(file)
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as problem:
        raise UserError(
            f"the file of arrays {file} cannot be read ({problem.strerror or problem}); give "
            "another in config.fields.<field>.file, or --vectors."
        ) from None
    except (ValueError, EOFError) as problem:
        raise UserError(f"the file of arrays {file} is no .npy file ({problem}).") from None
    if not isinstance(found, np.ndarray):
        raise UserError(f"{file} holds several arrays (.npz); save the one wanted with numpy.save.")
    return mapped, found


def save_store(file: str | Path, rows: np.ndarray, texts: Sequence[Text]) -> None:
    """Writes a file for `ArrayField.file` with `aligned_with`, and next to it a hash of its texts.

    A run with other texts, or in another order, is then rejected before its first step.

    Args:
      file: the .npy file; the suffix of the hash file is `.texts.json`.
      rows: [texts, ...], one for each text.
      texts: texts of all training records, in order.

    Raises:
      ValueError: the numbers of rows and texts differ.
    """
    if len(rows) != len(texts):
        raise ValueError(f"{file}: {len(rows)} rows for {len(texts)} texts; give one for each.")
    np.save(file, rows)
    save_texts(file, texts)


def save_texts(file: str | Path, texts: Sequence[Text], **about: Any) -> None:
    """Writes the hash of the texts next to an existing store; see `save_store`.

    Args:
      **about: more facts about the store, for JSON.
    """
    info = {"count": len(texts), "sha256": texts_sha256(texts), **about}
    write_bytes(beside(file), to_json(info))


def texts_sha256(texts: Iterable[Text]) -> str:
    """Returns the SHA-256 of texts in order, as UTF-8 with a line feed after each.

    Of a pair, the title comes first, also with a line feed.
    """
    digest = hashlib.sha256()
    for text in texts:
        lines = (text,) if isinstance(text, str) else text
        digest.update("".join(line + "\n" for line in lines).encode())
    return digest.hexdigest()


def beside(file: str | Path) -> Path:
    """Returns the path of a store's hash of texts."""
    return Path(file).with_suffix(".texts.json")


def texts_of_store(file: str) -> str:
    """Returns the `texts_sha256` of a store; empty if nobody wrote it.

    Raises:
      UserError: it cannot be read.
    """
    path = beside(file)
    if not path.exists():
        return ""
    try:
        return str(json.loads(path.read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is not readable JSON with the key 'sha256': make it anew with {file}, or "
            "remove it, and the texts are not compared."
        ) from None
