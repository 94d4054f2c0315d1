"""Rows of queries as files, rows of documents as indexes."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.retrieval import dense, inverted
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import TextsWriter
from big_retrieval.retrieval.folder import About

BATCH = 256  # documents indexed at a time
ARRAYS = ("pointers.npy", "documents.npy", "values.npy", "embeddings.npy")  # that a search reads


def save(path: Path, rows: Any) -> str:
    """Writes the rows of queries; returns the name of the file."""
    if scipy.sparse.issparse(rows):
        scipy.sparse.save_npz(path.with_name(f"{path.name}.npz"), rows, compressed=False)
        return f"{path.name}.npz"
    np.save(path.with_name(f"{path.name}.npy"), rows)
    return f"{path.name}.npy"


def entries(rows: Any) -> float:
    """The numbers of a row on average: values of a sparse one, all of an embedding."""
    count = rows.nnz if scipy.sparse.issparse(rows) else rows.size
    return count / max(rows.shape[0], 1)


def build(out: Path, rows: Any, topology: str) -> dict[str, Any]:
    """Writes an index of documents without names.

    Args:
      out: the folder to make.
      rows: CSR [D, V], or embeddings [D, M, N].
      topology: of embeddings.

    Returns:
      `index_bytes` of the arrays that a search reads, and `document_entries`, numbers of a document
      on average.
    """
    place = folders.begin(out)
    parts = (rows[start : start + BATCH] for start in range(0, rows.shape[0], BATCH))
    if scipy.sparse.issparse(rows):
        values = inverted.BINARY if (rows.data == 1).all() else "float32"
        about = About(kind=folders.INVERTED, terms=rows.shape[1], values=values)
        about = inverted.build(place, parts, about)
    else:
        about = dense.build(place, parts, About(kind=folders.DENSE, topology=topology))
    ids = TextsWriter(place, "ids")
    ids.append(map(str, range(rows.shape[0])))
    ids.close()
    folders.finish(place, out, about)
    there = [out / name for name in ARRAYS if (out / name).exists()]
    size = sum(path.stat().st_size for path in there)
    return {"index_bytes": size, "document_entries": entries(rows)}
