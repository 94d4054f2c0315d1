"""Lexical documents in the formats of other tools: Lucene by way of Anserini, and scipy."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval.files import open_array
from big_retrieval.retrieval.runs import checked

Batch = tuple[list[str], sparse.csr_array]  # ids [n], values [n, V]
NAMES = {"lucene": "documents.jsonl", "csr": "documents.npz"}


def write_lucene(
    folder: Path, batches: Iterable[Batch], words: Sequence[str], quantise: float | None
) -> int:
    """Writes `documents.jsonl` for Anserini's JsonVectorCollection.

    A line is {"id": ..., "contents": "", "vector": {word: weight}}, words as the tokenizer writes
    them ("##ing").

    Args:
      folder: to write to.
      batches: ids and values of consecutive documents.
      words: of the terms, [V].
      quantise: weights are multiplied by this number and rounded, and zeros left out, as impact
        indexes need; None: weights stay as they are.

    Returns:
      The number of documents.
    """
    count = 0
    with (folder / NAMES["lucene"]).open("w", encoding="utf-8") as file:
        for ids, found in batches:
            rows = checked(found, len(words), count)
            values = rows.data if quantise is None else np.rint(rows.data * quantise).astype(int)
            for row, name in enumerate(ids):
                one = slice(rows.indptr[row], rows.indptr[row + 1])
                pairs = zip(rows.indices[one].tolist(), values[one].tolist(), strict=True)
                vector = {words[term]: value for term, value in pairs if value}
                line = {"id": name, "contents": "", "vector": vector}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += len(ids)
    return count


def write_csr(folder: Path, batches: Iterable[Batch], words: Sequence[str]) -> int:
    """Writes `documents.npz` for `scipy.sparse.load_npz`, `ids.txt` and `words.txt`, one a line.

    Args:
      folder: to write to.
      batches: ids and values of consecutive documents.
      words: of the terms, [V].

    Returns:
      The number of documents.

    Raises:
      UserError: an id has a line break.
    """
    names = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
    parts = {name: folder / f"{name}.npy" for name in names}
    writers = {name: ArrayWriter(parts[name], kind) for name, kind in names.items()}
    writers["indptr"].append(np.zeros(1))
    count = 0
    with (folder / "ids.txt").open("w", encoding="utf-8") as file:
        for ids, found in batches:
            rows = checked(found, len(words), count)
            for name in ids:
                if len(name.splitlines()) != 1:
                    raise UserError(f"the id {name!r} has a line break or is empty; give another.")
            file.writelines(f"{name}\n" for name in ids)
            writers["indptr"].append(rows.indptr[1:] + np.int64(writers["data"].rows))
            writers["data"].append(rows.data)
            writers["indices"].append(rows.indices)
            count += len(ids)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    for writer in writers.values():
        writer.close()
    data, indices, indptr = (open_array(parts[name], kind) for name, kind in names.items())
    whole = sparse.csr_array((data, indices, indptr), shape=(count, len(words)))
    sparse.save_npz(folder / NAMES["csr"], whole, compressed=False)  # copies the mapped files
    for part in parts.values():
        part.unlink()
    return count
