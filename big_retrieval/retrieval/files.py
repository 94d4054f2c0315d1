"""Arrays and texts that are written piece by piece and read by memory map.

Every array is a plain .npy file, so that `numpy.load(path, mmap_mode="r")` reads it anywhere.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.handles import MappedFile
from big_retrieval.io.npy import ArrayWriter


def open_array(path: Path, dtype: Any, dims: int = 1) -> np.ndarray:
    """A .npy file as a read-only array that is mapped into memory.

    Raises:
      UserError: it is missing, cut short, or holds something else.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(
            f"{path} is no readable array ({problem}); build the index again."
        ) from None
    if found.dtype != np.dtype(dtype) or found.ndim != dims:
        raise UserError(
            f"{path} holds {found.dtype} of {found.ndim} dimensions where {np.dtype(dtype)} of "
            f"{dims} is expected; build the index again."
        )
    return found.view(np.ndarray)  # slices of a memmap cost several microseconds each


def mapped_files(*paths: Path) -> list[MappedFile]:
    """Checks of files of an index, to be made before they are mapped.

    Raises:
      UserError: a file is missing.
    """
    try:
        return [MappedFile(path) for path in paths]
    except OSError as problem:
        raise UserError(
            f"{problem.filename} cannot be read ({problem.strerror}); build the index again."
        ) from None


class TextsWriter:
    """Texts in two files: their UTF-8 bytes one behind the other, and where each ends.

    Args:
      folder: of the files.
      name: `<name>.npy` holds the bytes, uint8, and `<name>_ends.npy` the ends, int64.
    """

    def __init__(self, folder: Path, name: str):
        self._bytes = ArrayWriter(folder / f"{name}.npy", np.uint8)
        self._ends = ArrayWriter(folder / f"{name}_ends.npy", np.int64)

    def append(self, texts: Iterable[str]) -> None:
        """Appends texts."""
        parts = [text.encode("utf-8", "replace") for text in texts]
        ends = self._bytes.rows + np.cumsum([len(part) for part in parts], dtype=np.int64)
        self._bytes.append(np.frombuffer(b"".join(parts), np.uint8))
        self._ends.append(ends)

    def extend(self, texts: "StoredTexts") -> None:
        """Appends all texts of two other files."""
        before = self._bytes.rows
        self._bytes.append(texts.bytes)
        self._ends.append(before + texts.ends)

    def __enter__(self) -> "TextsWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finishes both files."""
        self._bytes.close()
        self._ends.close()


class StoredTexts(Sequence[str]):
    """Texts by number, read from the disk when asked for.

    Args:
      folder: of the files that `TextsWriter` wrote.
      name: of the texts.

    Attributes:
      bytes: UTF-8 of all texts, uint8, mapped into memory.
      ends: int64 [n], where each text ends in them.

    Raises:
      UserError: a file is missing or they do not fit together.
    """

    def __init__(self, folder: Path, name: str):
        paths = folder / f"{name}.npy", folder / f"{name}_ends.npy"
        self._files = mapped_files(*paths)
        self.bytes, self.ends = open_array(paths[0], np.uint8), open_array(paths[1], np.int64)
        if len(self.ends) and self.ends[-1] != len(self.bytes):
            raise UserError(
                f"{folder / name}.npy and {name}_ends.npy do not fit; build the index again."
            )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> str:
        for file in self._files:
            file.check()
        return self._read(int(number))

    def _read(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(f"there are texts 0 to {len(self) - 1}, not {number}.")
        start = int(self.ends[number - 1]) if number else 0
        return self.bytes[start : int(self.ends[number])].tobytes().decode("utf-8", "replace")

    def many(self, numbers: Iterable[int]) -> list[str]:
        """The texts of some numbers; negative numbers, which stand for no text, are left out."""
        for file in self._files:
            file.check()
        return [self._read(int(number)) for number in numbers if number >= 0]
