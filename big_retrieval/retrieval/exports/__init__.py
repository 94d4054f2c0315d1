"""Exports of encoded documents to the formats of other tools.

`FORMATS` describes the formats without importing the modules that write them.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError

Batch = tuple[list[str], list[str], Any]  # ids [n], texts to show [n], embeddings of n documents


@dataclass(frozen=True)
class ExportFormat:
    """Contents of a format."""

    file: str  # the file that a user opens first
    module: str  # module of this package with the function `write_<name>`
    lexical: bool = False  # holds values of lexical fields
    dense: bool = False  # holds dense embeddings
    instead: str = ""  # format to suggest for other embeddings


FORMATS = {
    "lucene": ExportFormat("documents.jsonl", "files", lexical=True, instead="npz or qdrant"),
    "csr": ExportFormat("documents.npz", "files", lexical=True, instead="npz"),
    "npz": ExportFormat("documents.npz", "files", dense=True, instead="csr"),
    "qdrant": ExportFormat("upload.py", "qdrant", lexical=True, dense=True),
}


@dataclass(frozen=True)
class ExportedDocuments:
    """Encoded documents to write for another tool."""

    # Consecutive documents, with `csr_array` [n, V] of lexical fields, else float32 [n, M, N]
    batches: Iterable[Batch]
    words: Sequence[str] = ()  # words of the terms, [V]; empty for dense embeddings
    topology: str | Mapping[str, Any] = ""  # topology of dense embeddings
    # Factor of Lucene's weights, which are then rounded; None keeps the weights
    quantise: float | None = None


def check(name: str, fields: str, *, lexical: bool) -> None:
    """Raises a UserError if a format does not hold the embeddings of `fields`."""
    export_format = FORMATS[name]
    if not (export_format.lexical if lexical else export_format.dense):
        expected, actual = ("dense", "lexical") if lexical else ("lexical", "dense")
        raise UserError(
            f"--format={name} needs {expected} fields, but {fields} is {actual}. Use "
            f"--format={export_format.instead}."
        )


def write_export(name: str, folder: Path, export: ExportedDocuments) -> int:
    """Writes documents in a format; returns the number of documents."""
    module = importlib.import_module(f"{__name__}.{FORMATS[name].module}")
    return getattr(module, f"write_{name}")(folder, export)
