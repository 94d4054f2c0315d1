"""Lucene, by way of Anserini: lexical documents as JSON lines."""

import json
from pathlib import Path

import numpy as np

from big_retrieval.retrieval.exports import FORMATS, ExportedDocuments
from big_retrieval.retrieval.exports.rows import vectors


def write(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.jsonl` for Anserini's JsonVectorCollection.

    A line is {"id": ..., "contents": "", "vector": {word: weight}}, words as the tokenizer writes
    them ("##ing").

    Args:
      folder: to write to.
      export: the documents. Weights are multiplied by `quantise` and rounded, and zeros left out,
        as impact indexes need; None: weights stay as they are.

    Returns:
      The number of documents.
    """
    factor, count = export.quantise, 0

    def scaled(values: np.ndarray) -> np.ndarray:
        return values if factor is None else np.rint(values * factor).astype(int)

    with (folder / FORMATS["lucene"].file).open("w", encoding="utf-8") as file:
        for ids, _, rows in export.batches:
            found = vectors(rows, export.words, count, scaled)
            for name, vector in zip(ids, found, strict=True):
                line = {"id": name, "contents": "", "vector": vector}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += len(ids)
    return count
