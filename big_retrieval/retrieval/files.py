"""Arrays and texts that are written piece by piece and read by memory map.

Every array is a plain .npy file, so that `numpy.load(path, mmap_mode="r")` reads it anywhere.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError


class ArrayWriter:
    """A .npy file that rows are appended to.

    Args:
      path: the file; written anew.
      dtype: of the elements.
      shape: of one row; (): the rows are numbers.

    Attributes:
      rows: appended so far.
      shape: of one row.
    """

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...] = ()):
        self._dtype, self.shape, self.rows = np.dtype(dtype), shape, 0
        self._file = path.open("wb")
        self._header()
        self._start = self._file.tell()

    def append(self, rows: np.ndarray) -> None:
        """Appends rows [n, *shape], converted to the file's type."""
        rows = np.ascontiguousarray(rows, self._dtype)
        if rows.shape[1:] != self.shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} in a file of {self.shape}")
        rows.tofile(self._file)
        self.rows += len(rows)

    def close(self) -> None:
        """Writes the number of rows into the header, which numpy leaves room for."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._header()
        if self._file.tell() != self._start:
            raise RuntimeError(f"the header of {self._file.name} has another length now")
        self._file.close()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self.rows, *self.shape),
            },
        )


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

    Raises:
      UserError: a file is missing or they do not fit together.
    """

    def __init__(self, folder: Path, name: str):
        self._bytes = open_array(folder / f"{name}.npy", np.uint8)
        self._ends = open_array(folder / f"{name}_ends.npy", np.int64)
        if len(self._ends) and self._ends[-1] != len(self._bytes):
            raise UserError(
                f"{folder / name}.npy and {name}_ends.npy do not fit; build the index again."
            )

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: Any) -> str:
        number = int(number)
        if not 0 <= number < len(self):
            raise IndexError(f"there are texts 0 to {len(self) - 1}, not {number}.")
        start = int(self._ends[number - 1]) if number else 0
        return self._bytes[start : int(self._ends[number])].tobytes().decode("utf-8", "replace")

    def many(self, numbers: Iterable[int]) -> list[str]:
        """The texts of some numbers; negative numbers, which stand for no text, are left out."""
        return [self[number] for number in numbers if number >= 0]
