"""Files of arrays, and hashes of the texts that their rows belong to."""

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

    Call it before each read: reading a truncated file would end the process.

    Args:
      again: True to reopen a changed file, at the start of a run.

    Raises:
      UserError: the file is missing, is not a .npy file, or changed since it was opened.
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
        store = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UserError(
            f"the file of arrays {file} cannot be read ({error.strerror or error}); give "
            "another in config.fields.<field>.file."
        ) from None
    except (ValueError, EOFError) as error:
        raise UserError(f"the file of arrays {file} is not a .npy file ({error}).") from None
    if not isinstance(store, np.ndarray):
        raise UserError(f"{file} contains several arrays (.npz). Save one with numpy.save.")
    return mapped, store


def save_store(file: str | Path, rows: np.ndarray, texts: Sequence[Text]) -> None:
    """Writes an .npy file for `ArrayField.file` with `aligned_with`, and a hash of its texts.

    A run with other texts, or with texts in another order, is rejected before its first step.

    Args:
      rows: [texts, ...].
      texts: texts of all training records, in order.
    """
    if len(rows) != len(texts):
        raise ValueError(f"{file}: {len(rows)} rows for {len(texts)} texts; give one for each.")
    np.save(file, rows)
    save_texts(file, texts)


def save_texts(file: str | Path, texts: Sequence[Text], **more: Any) -> None:
    """Writes the hash of a store's texts, with further values, next to an existing store."""
    info = {"count": len(texts), "sha256": texts_sha256(texts), **more}
    write_bytes(hash_path_for(file), to_json(info))


def texts_sha256(texts: Iterable[Text]) -> str:
    """Returns the SHA-256 of titles and texts in order, as UTF-8 with a line feed after each."""
    digest = hashlib.sha256()
    for text in texts:
        title_and_text = (text,) if isinstance(text, str) else text
        digest.update("".join(line + "\n" for line in title_and_text).encode())
    return digest.hexdigest()


def hash_path_for(file: str | Path) -> Path:
    """Returns the path of the file with the hash of a store's texts."""
    return Path(file).with_suffix(".texts.json")


def read_texts_sha256(file: str) -> str:
    """Returns the saved `texts_sha256` of a store; empty if it has none."""
    path = hash_path_for(file)
    if not path.exists():
        return ""
    try:
        return str(json.loads(path.read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is not readable JSON with the key 'sha256'. Write it again with {file}, or "
            "remove it to skip the comparison of texts."
        ) from None
