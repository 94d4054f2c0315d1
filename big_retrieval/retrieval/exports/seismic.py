"""Seismic (the package pyseismic-lsr): lexical documents as JSON lines."""

import json
from pathlib import Path

from big_retrieval.retrieval.exports import FORMATS, ExportedDocuments
from big_retrieval.retrieval.exports.rows import vectors


def write(folder: Path, export: ExportedDocuments) -> int:
    """Writes `documents.jsonl` for `SeismicIndex.build`; returns the number of documents.

    A line is {"id": ..., "content": beginning of the text, "vector": {word: weight}}, words as the
    tokenizer writes them ("##ing").
    """
    count = 0
    with (folder / FORMATS["seismic"].file).open("w", encoding="utf-8") as file:
        for ids, texts, rows in export.batches:
            found = vectors(rows, export.words, count)
            for name, text, vector in zip(ids, texts, found, strict=True):
                line = {"id": name, "content": text, "vector": vector}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += len(ids)
    return count
