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
from big_retrieval.io.space import reason


def open_array(path: Path, dtype: Any, dims: int = 1) -> np.ndarray:
    """Maps a .npy file into memory as a read-only array; raises a UserError for another array."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"Cannot read array {path}: {reason(error)}. Build the index again."
        ) from None
    if array.dtype != np.dtype(dtype) or array.ndim != dims:
        raise UserError(
            f"{path} has type {array.dtype} and {array.ndim} dimensions instead of "
            f"{np.dtype(dtype)} and {dims}. Build the index again."
        )
    return array.view(np.ndarray)  # slices of a memmap cost several microseconds each


def mapped_files(*paths: Path) -> list[MappedFile]:
    """Opens checks of files that are about to be mapped; raises a UserError without a file."""
    try:
        return [MappedFile(path) for path in paths]
    except OSError as error:
        raise UserError(
            f"Cannot read {error.filename}: {error.strerror}. Build the index again."
        ) from None


class IndexStore(Store):
    """Rows of an index's documents (`DocumentRow.stored`); reads fail if a file was changed."""

    def __init__(self, folder: Path):
        self._mapped = mapped_files(*sorted(folder.glob("store-*.arrow")))
        super().__init__(folder)

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        self._mapped[bisect.bisect_right(self._ends, index)].check()
        return super().row(index, columns)


class StoredTexts(Sequence[str]):
    """Texts of a store's column by document index; "" if a document has no text."""

    def __init__(self, store: Store, column: str):
        self._store, self._column = store, column

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, document: Any) -> str:
        if not 0 <= document < len(self):
            raise IndexError(document)
        return self._store.row(int(document), (self._column,)).get(self._column, "")

    def many(self, documents: Iterable[int]) -> list[str]:
        """Returns the texts of documents; skips negative indices."""
        return [self[document] for document in documents if document >= 0]
