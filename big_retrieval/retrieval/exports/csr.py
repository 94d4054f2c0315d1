"""scipy: lexical documents as one sparse matrix."""

from pathlib import Path

from scipy import sparse

from big_retrieval.retrieval.exports import FORMATS, ExportedDocuments
from big_retrieval.retrieval.exports.rows import ARRAYS, IdsWriter, RowsWriter
from big_retrieval.retrieval.files import open_array


def write(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.npz` for `scipy.sparse.load_npz`, `ids.txt` and `words.txt`, one a line.

    Returns:
      The number of documents.

    Raises:
      UserError: an id has a line break.
    """
    with IdsWriter(folder) as names, RowsWriter(folder, len(export.words)) as writer:
        for ids, _, rows in export.batches:
            names.append(ids)
            writer.append(rows)
    words = "".join(f"{word}\n" for word in export.words)
    (folder / "words.txt").write_text(words, encoding="utf-8")
    parts = [folder / f"{name}.npy" for name in ARRAYS]
    arrays = tuple(map(open_array, parts, ARRAYS.values()))
    shape = (len(arrays[2]) - 1, len(export.words))
    whole = sparse.csr_array(arrays, shape=shape)
    sparse.save_npz(folder / FORMATS["csr"].file, whole, compressed=False)  # copies mapped files
    for part in parts:
        part.unlink()
    return shape[0]
