"""Arrays and texts of an index, mapped into memory."""

import bisect
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.sources import Record
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import UserError
from big_retrieval.io.handles import MappedFile


def open_array(path: Path, dtype: Any, dims: int = 1) -> np.ndarray:
    """Maps a .npy file into memory as a read-only array.

    Raises:
      UserError: the file is missing, cut short, or has another type or number of dimensions.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(
            f"{path} is no readable array ({problem}); build the index again."
        ) from None
    if array.dtype != np.dtype(dtype) or array.ndim != dims:
        raise UserError(
            f"{path} has type {array.dtype} and {array.ndim} dimensions instead of "
            f"{np.dtype(dtype)} and {dims}; build the index again."
        )
    return array.view(np.ndarray)  # slices of a memmap cost several microseconds each


def mapped_files(*paths: Path) -> list[MappedFile]:
    """Returns checks of files that are about to be mapped; raises a UserError if one is missing."""
    try:
        return [MappedFile(path) for path in paths]
    except OSError as problem:
        raise UserError(
            f"{problem.filename} cannot be read ({problem.strerror}); build the index again."
        ) from None


class IndexStore(Store):
    """Rows of an index's documents, as of `DocumentRow.stored`; all have an `id`.

    Raises:
      UserError: a file is missing or damaged.
    """

    def __init__(self, folder: Path):
        self._mapped = mapped_files(*sorted(folder.glob("store-*.arrow")))
        super().__init__(folder)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """Returns the values of a row; raises a UserError if its file was changed."""
        self._mapped[bisect.bisect_right(self._ends, index)].check()
        return super().row(index, columns)


class StoredTexts(Sequence[str]):
    """Texts of a column of an index's store, by document; "" for none."""

    def __init__(self, store: Store, column: str):
        self._store, self._column = store, column

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, number: Any) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._store.row(int(number), (self._column,)).get(self._column, "")

    def many(self, numbers: Iterable[int]) -> list[str]:
        """Returns the texts of some documents, without those of negative numbers."""
        return [self[number] for number in numbers if number >= 0]
