"""Qdrant: documents of either kind as arrays, with the program that uploads them."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import similarity
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.retrieval.exports import FORMATS, Batch, ExportedDocuments
from big_retrieval.retrieval.exports.files import ARRAYS, write_embeddings, write_rows


def write_qdrant(folder: Path, export: ExportedDocuments) -> int:
    """Writes `upload.py`, a copy of `qdrant_upload.py`, and the files that it reads."""
    collection: dict[str, Any]
    if export.words:
        collection = {"vector": "lexical", "terms": len(export.words)}
        write_rows(folder, _with_payloads(folder, export.batches), len(export.words))
        count = len(np.load(folder / f"{[*ARRAYS][-1]}.npy", mmap_mode="r")) - 1
    else:
        collection = {"vector": "dense", "distance": distance(export.topology)}
        batches = _with_payloads(folder, export.batches)
        embeddings = write_embeddings(folder, batches, export.topology)
        collection["size"], count = int(np.prod(embeddings.shape[1:])), len(embeddings)
    (folder / "collection.json").write_bytes(manifest.to_json({**collection, "documents": count}))
    program = Path(__file__).with_name("qdrant_upload.py")
    shutil.copyfile(program, folder / FORMATS["qdrant"].file)
    return count


def _with_payloads(folder: Path, batches: Iterable[Batch]) -> Iterator[Any]:
    """Yields the embeddings of documents, and writes their ids and texts to `payloads.jsonl`."""
    with (folder / "payloads.jsonl").open("w", encoding="utf-8") as file:
        for ids, texts, rows in batches:
            for name, text in zip(ids, texts, strict=True):
                file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
            yield rows


def distance(topology: str | Mapping[str, Any]) -> str:
    """Returns Qdrant's name of a topology's score; raises a UserError without one."""
    parsed = topology_part(topology)
    if isinstance(parsed, similarity.FlatProduct):
        return "Dot"
    if isinstance(parsed, similarity.Euclidean):
        return "Euclid"
    raise UserError(
        f"Qdrant has only inner products and Euclidean distances, not the score of topology "
        f"{topology!r}. Use --format=npz."
    )
