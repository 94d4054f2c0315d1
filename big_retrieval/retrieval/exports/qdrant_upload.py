"""Uploads the documents of this folder, which `big-retrieval index --format=qdrant` wrote.

    pip install qdrant-client
    python upload.py --url=http://localhost:6333 --collection=documents
    python upload.py --path=FOLDER --collection=documents

--path is a folder of the client's local mode, which needs no server. The environment variable
QDRANT_API_KEY has the key of a server. Files next to this one:

    collection.json       name of the vector, with its distance and size, or number of terms
    payloads.jsonl        {"id": ..., "text": beginning of the text} of each document, by line
    embeddings.npy        dense documents, float32 [D, M, N]; Qdrant has vectors of M * N numbers
    data.npy, indices.npy, indptr.npy    lexical documents, a CSR matrix [D, V]

Point i of the collection is document i, with its line as the payload. A lexical document without
values is a point without a vector, which no search returns.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

models: Any  # Qdrant's client is not a dependency
try:
    from qdrant_client import QdrantClient, models  # pyright: ignore[reportMissingImports]
except ImportError:
    QdrantClient = models = None

FOLDER = Path(__file__).parent


def main(args: Sequence[str] | None = None) -> None:
    """Creates the collection and uploads all documents; None for the command line's `args`."""
    parser = argparse.ArgumentParser(description="Uploads the documents of a folder to Qdrant.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="URL of a server, such as http://localhost:6333")
    where.add_argument("--path", help="folder of the local mode, which needs no server")
    parser.add_argument("--collection", default="documents", help="name of the new collection")
    parser.add_argument("--batch", type=int, default=256, help="documents per request")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="folder of the files; this folder by default"
    )
    options = parser.parse_args(args)
    if QdrantClient is None:
        raise SystemExit("upload.py needs Qdrant's client: pip install qdrant-client")
    location = {"url": options.url} if options.url else {"path": options.path}
    client = QdrantClient(**location, api_key=os.environ.get("QDRANT_API_KEY"))
    count = upload(client, options.collection, options.folder, options.batch)
    print(f"{count:,} documents are in the collection {options.collection}.")
    client.close()


def upload(client: Any, collection: str, folder: Path = FOLDER, batch: int = 256) -> int:
    """Creates a collection with the documents of a folder; returns the number of documents."""
    if client.collection_exists(collection):
        raise SystemExit(f"Collection {collection} exists. Delete it, or name another.")
    info = json.loads((folder / "collection.json").read_text())
    name = info["vector"]
    if name == "lexical":
        config = {"sparse_vectors_config": {name: models.SparseVectorParams()}}
    else:
        params = models.VectorParams(size=info["size"], distance=models.Distance(info["distance"]))
        config = {"vectors_config": {name: params}}
    client.create_collection(collection, **config)
    vectors = sparse_vectors(folder) if name == "lexical" else dense_vectors(folder)
    client.upload_points(
        collection, points(folder, name, vectors), batch_size=batch, max_retries=3, wait=True
    )
    return client.count(collection, exact=True).count


def points(folder: Path, name: str, vectors: Iterator[Any]) -> Iterator[Any]:
    """Yields one point per document; a document without values has no vector."""
    with (folder / "payloads.jsonl").open(encoding="utf-8") as file:
        for index, (line, vector) in enumerate(zip(file, vectors, strict=True)):
            named = {} if vector is None else {name: vector}
            yield models.PointStruct(id=index, vector=named, payload=json.loads(line))


def dense_vectors(folder: Path) -> Iterator[list[float]]:
    """Yields the embedding of each document, M * N numbers."""
    for row in np.load(folder / "embeddings.npy", mmap_mode="r"):
        yield row.ravel().tolist()


def sparse_vectors(folder: Path) -> Iterator[Any]:
    """Yields the values of each document; None for a document without values."""
    names = ("data", "indices", "indptr")
    data, indices, indptr = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in names)
    for start, stop in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        terms, values = indices[start:stop].tolist(), data[start:stop].tolist()
        yield models.SparseVector(indices=terms, values=values) if terms else None


if __name__ == "__main__":
    main()
