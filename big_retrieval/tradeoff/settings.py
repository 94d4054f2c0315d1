"""The points of a plot: a system with a gate of its queries and a gate of its indexed documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse

from big_retrieval.inference.encoder import Embeddings
from big_retrieval.retrieval import dense, inverted
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import TextsWriter
from big_retrieval.retrieval.folder import About
from big_retrieval.tradeoff.systems import BM25, Scorer, System

BATCH = 256  # rows encoded or indexed at a time
ARRAYS = ("pointers.npy", "documents.npy", "values.npy", "embeddings.npy")  # that a search reads


@dataclass(frozen=True)
class Setting:
    """A system with a gate of its queries and a gate of its documents: a point of the plot.

    Attributes:
      known: the entries of the report that are known before anything is measured.
      encoding: what turns a text into the query, "network_ms" or "words_ms".
      scorer: the system's metrics.
      queries: the encoded queries.
      index: name of the index of the encoded documents.
    """

    known: Mapping[str, Any]
    encoding: str
    scorer: Scorer
    queries: Embeddings
    index: str


def settings_of(name: str, system: System, work: Path, index: str) -> list[Setting]:
    """The settings of a system: all pairs of gates, with indexes built in a folder.

    Args:
      name: of the system.
      system: encodes queries and documents.
      work: the folder.
      index: prefix of the indexes' names.
    """
    queries = {gate: system.rows("query", mode) for gate, mode in system.gates["query"].items()}
    out = []
    for document, mode in system.gates["document"].items():
        place = f"{index}-{document}"
        size = build(work / place, system.rows("document", mode), system.topology)
        for query, rows in queries.items():
            known = {
                "model": name, "lexical": document not in ("exact", BM25), "query": query,
                "document": document, "query_entries": entries(rows), **size,
            }  # fmt: skip
            bag = system.gates["query"][query].bags == "query"
            encoding = "words_ms" if bag else "network_ms"
            out.append(Setting(known, encoding, system.scorer, rows, place))
    return out


def build(out: Path, rows: Embeddings, topology: str | Mapping[str, Any]) -> dict[str, Any]:
    """Writes an index of documents without names.

    Args:
      out: the folder to make.
      rows: CSR [D, V], or embeddings [D, M, N].
      topology: of embeddings.

    Returns:
      `index_bytes` of the arrays that a search reads, and `document_entries`, numbers of a document
      on average.
    """
    partial = folders.begin(out)
    parts = (rows[start : start + BATCH] for start in range(0, rows.shape[0], BATCH))
    if scipy.sparse.issparse(rows):
        values = inverted.BINARY if (rows.data == 1).all() else "float32"
        about = About(kind=folders.INVERTED, terms=rows.shape[1], values=values)
        about = inverted.build(partial, parts, about)
    else:
        about = dense.build(partial, parts, About(kind=folders.DENSE, topology=topology))
    with TextsWriter(partial, "ids") as ids:
        ids.append(map(str, range(rows.shape[0])))
    folders.finish(partial, out, about)
    size = sum((out / name).stat().st_size for name in ARRAYS if (out / name).exists())
    return {"index_bytes": size, "document_entries": entries(rows)}


def entries(rows: Embeddings) -> float:
    """How many numbers a row has on average; of sparse rows only the stored values count."""
    return (rows.nnz if scipy.sparse.issparse(rows) else rows.size) / max(rows.shape[0], 1)
