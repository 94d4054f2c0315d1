"""Exports for Lucene, scipy and numpy, and the arrays that several formats write."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval import dense
from big_retrieval.retrieval.exports import FORMATS, Batch, ExportedDocuments
from big_retrieval.retrieval.files import open_array
from big_retrieval.retrieval.folder import DENSE, About
from big_retrieval.retrieval.runs import checked

ARRAYS = {"data": np.float32, "indices": np.int32, "indptr": np.int64}  # of a CSR matrix


def write_lucene(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.jsonl` for Anserini's JsonVectorCollection.

    A line is {"id": ..., "contents": "", "vector": {word: weight}}, with words as the tokenizer
    writes them ("##ing"). Impact indexes need `export.quantise`; rounded weights of 0 are left out.
    """
    count, words = 0, export.words
    with (folder / FORMATS["lucene"].file).open("w", encoding="utf-8") as file:
        for ids, _, batch in export.batches:
            rows = checked(batch, len(words), count)
            values, terms = rows.data, rows.indices.tolist()
            if export.quantise is not None:
                values = np.rint(values * export.quantise).astype(int)
            weights = values.tolist()
            for name, start, stop in zip(ids, rows.indptr[:-1], rows.indptr[1:], strict=True):
                pairs = zip(terms[start:stop], weights[start:stop], strict=True)
                vector = {words[term]: weight for term, weight in pairs if weight}
                line = {"id": name, "contents": "", "vector": vector}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += len(ids)
    return count


def write_csr(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.npz` for `scipy.sparse.load_npz`, and `ids.txt` and `words.txt` by line."""
    vocabulary = "".join(f"{word}\n" for word in export.words)
    (folder / "words.txt").write_text(vocabulary, encoding="utf-8")
    write_rows(folder, _with_ids(folder, export.batches), len(export.words))
    paths = [folder / f"{name}.npy" for name in ARRAYS]
    arrays = tuple(map(open_array, paths, ARRAYS.values()))
    matrix = sparse.csr_array(arrays, shape=(len(arrays[2]) - 1, len(export.words)))
    sparse.save_npz(folder / FORMATS["csr"].file, matrix, compressed=False)  # copies mapped files
    for path in paths:
        path.unlink()
    return len(arrays[2]) - 1


def write_npz(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.npz` with the array `embeddings` [D, M, N], and `ids.txt` by line."""
    embeddings = write_embeddings(folder, _with_ids(folder, export.batches), export.topology)
    np.savez(folder / FORMATS["npz"].file, embeddings=embeddings)
    (folder / "embeddings.npy").unlink()
    return len(embeddings)


def write_rows(folder: Path, batches: Iterable[Any], terms: int) -> None:
    """Writes rows, `csr_array` [n, V], as the arrays of one CSR matrix in .npy files."""
    writers = {name: ArrayWriter(folder / f"{name}.npy", dtype) for name, dtype in ARRAYS.items()}
    data, indices, indptr = writers.values()
    with data, indices, indptr:
        indptr.append(np.zeros(1))
        for batch in batches:
            rows = checked(batch, terms, indptr.rows - 1)
            indptr.append(rows.indptr[1:] + np.int64(data.rows))
            data.append(rows.data)
            indices.append(rows.indices)


def write_embeddings(
    folder: Path, batches: Iterable[np.ndarray], topology: str | Mapping[str, Any]
) -> np.ndarray:
    """Writes dense embeddings to `embeddings.npy`; returns them mapped, [D, M, N]."""
    dense.build(folder, batches, About(kind=DENSE, topology=topology))
    return np.load(folder / "embeddings.npy", mmap_mode="r")


def _with_ids(folder: Path, batches: Iterable[Batch]) -> Iterator[Any]:
    """Yields the embeddings of documents, and writes their ids to `ids.txt`, one per line."""
    with (folder / "ids.txt").open("w", encoding="utf-8") as file:
        for ids, _, rows in batches:
            for name in ids:
                if len(name.splitlines()) != 1:
                    raise UserError(f"Id with a line break, or empty: {name!r}. Give another id.")
            file.writelines(f"{name}\n" for name in ids)
            yield rows
