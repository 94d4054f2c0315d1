"""numpy: dense documents as one array."""

from pathlib import Path

import numpy as np

from big_retrieval.retrieval.exports import FORMATS, ExportedDocuments
from big_retrieval.retrieval.exports.rows import IdsWriter, write_embeddings


def write(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.npz` with the array `embeddings` [D, M, N], and `ids.txt`, one a line.

    Returns:
      The number of documents.

    Raises:
      UserError: an id has a line break, or embeddings are not finite.
    """
    with IdsWriter(folder) as names:
        path = write_embeddings(folder, export, lambda ids, _: names.append(ids))
    found = np.load(path, mmap_mode="r")
    np.savez(folder / FORMATS["npz"].file, embeddings=found)
    path.unlink()
    return len(found)
