"""Qdrant: documents of either kind as arrays, with the program that uploads them."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import similarity
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.retrieval.exports import FORMATS, ExportedDocuments
from big_retrieval.retrieval.exports.rows import RowsWriter, write_embeddings


def write(folder: Path, export: ExportedDocuments) -> int:
    """Writes `upload.py` and what it reads: see `qdrant_upload.py`, which it is a copy of.

    Returns:
      The number of documents.

    Raises:
      UserError: Qdrant has no such score.
    """
    about: dict[str, Any] = {"vector": "lexical", "terms": len(export.words)}
    if not export.words:
        about = {"vector": "dense", "distance": distance(export.topology)}
    count = 0
    with (folder / "payloads.jsonl").open("w", encoding="utf-8") as file:

        def add(ids: Sequence[str], texts: Sequence[str]) -> None:
            nonlocal count
            count += len(ids)
            for name, text in zip(ids, texts, strict=True):
                file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")

        if export.words:
            with RowsWriter(folder, len(export.words)) as writer:
                for ids, texts, rows in export.batches:
                    add(ids, texts)
                    writer.append(rows)
        else:
            path = write_embeddings(folder, export, add)
            about["size"] = int(np.prod(np.load(path, mmap_mode="r").shape[1:]))
    (folder / "collection.json").write_bytes(manifest.to_json({**about, "documents": count}))
    program = Path(__file__).with_name("qdrant_upload.py")
    shutil.copyfile(program, folder / FORMATS["qdrant"].file)
    return count


def distance(topology: str | Mapping[str, Any]) -> str:
    """Qdrant's name for the score of a topology.

    Raises:
      UserError: Qdrant has no such score.
    """
    found = topology_part(topology)
    if isinstance(found, similarity.FlatProduct):
        return "Dot"
    if isinstance(found, similarity.Euclidean):
        return "Euclid"
    raise UserError(
        f"Qdrant compares by inner products or Euclidean distances, which the topology "
        f"{topology!r} does not; use --format=npz."
    )
