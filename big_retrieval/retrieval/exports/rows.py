"""What several formats share: rows as dicts or as arrays on the disk, and files of ids."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval import dense
from big_retrieval.retrieval.exports import ExportedDocuments
from big_retrieval.retrieval.folder import DENSE, About
from big_retrieval.retrieval.runs import checked

ARRAYS = {"data": np.float32, "indices": np.int32, "indptr": np.int64}  # of a CSR matrix


def vectors(
    rows: Any,
    words: Sequence[str],
    first: int,
    scaled: Callable[[np.ndarray], np.ndarray] = lambda values: values,
) -> Iterator[dict[str, float]]:
    """Yields each row as word -> value, without zeros.

    Args:
      rows: `csr_array` [n, V].
      words: of the terms, [V].
      first: the number of the first row, for messages.
      scaled: changes the values before they are written.
    """
    rows = checked(rows, len(words), first)
    terms: np.ndarray = rows.indices
    values = scaled(rows.data)
    for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        found: list[int] = terms[start:stop].tolist()
        pairs = zip(found, values[start:stop].tolist(), strict=True)
        yield {words[term]: value for term, value in pairs if value}


class RowsWriter:
    """Sparse rows as the three arrays of one CSR matrix in .npy files, written batch by batch.

    Args:
      folder: of the files `data.npy`, `indices.npy` and `indptr.npy`.
      terms: V.
    """

    def __init__(self, folder: Path, terms: int):
        self._terms = terms
        self._writers = {
            name: ArrayWriter(folder / f"{name}.npy", kind) for name, kind in ARRAYS.items()
        }
        self._writers["indptr"].append(np.zeros(1))

    def append(self, rows: Any) -> None:
        """Appends rows, `csr_array` [n, V].

        Raises:
          UserError: as `runs.checked`.
        """
        data, indices, indptr = self._writers.values()
        rows = checked(rows, self._terms, indptr.rows - 1)
        indptr.append(rows.indptr[1:] + np.int64(data.rows))
        data.append(rows.data)
        indices.append(rows.indices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()


class IdsWriter:
    """The file `ids.txt`, one id a line.

    Args:
      folder: of the file.
    """

    def __init__(self, folder: Path):
        self._file = (folder / "ids.txt").open("w", encoding="utf-8")

    def append(self, ids: Sequence[str]) -> None:
        """Appends ids.

        Raises:
          UserError: an id has a line break or is empty.
        """
        for name in ids:
            if len(name.splitlines()) != 1:
                raise UserError(f"the id {name!r} has a line break or is empty; give another.")
        self._file.writelines(f"{name}\n" for name in ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def write_embeddings(
    folder: Path, export: ExportedDocuments, add: Callable[[list[str], list[str]], None]
) -> Path:
    """Writes dense embeddings as `embeddings.npy`, [D, M, N].

    Args:
      folder: to write to.
      export: the documents.
      add: is called with the ids and texts of every batch.

    Returns:
      The file.

    Raises:
      UserError: as `dense.build`.
    """

    def embeddings() -> Iterator[np.ndarray]:
        for ids, texts, rows in export.batches:
            add(ids, texts)
            yield rows

    dense.build(folder, embeddings(), About(kind=DENSE, topology=export.topology))
    return folder / "embeddings.npy"
