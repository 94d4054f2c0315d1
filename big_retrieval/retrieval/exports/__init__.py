"""Exports of encoded documents to the formats of other tools.

`FORMATS` describes the formats without importing the modules that write them.
"""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError

Batch = tuple[list[str], list[str], Any]  # ids [n], texts to show [n], embeddings of n documents


@dataclass(frozen=True)
class ExportFormat:
    """Contents of a format.

    Attributes:
      file: the file that a user opens first.
      module: module of this package whose function `write_<name>` writes the format.
      lexical: True for values of lexical fields.
      dense: True for embeddings of all other fields.
      instead: format for the embeddings that this one does not hold.
    """

    file: str
    module: str
    lexical: bool = False
    dense: bool = False
    instead: str = ""


FORMATS = {
    "lucene": ExportFormat("documents.jsonl", "files", lexical=True, instead="npz or qdrant"),
    "csr": ExportFormat("documents.npz", "files", lexical=True, instead="npz"),
    "npz": ExportFormat("documents.npz", "files", dense=True, instead="csr"),
    "qdrant": ExportFormat("upload.py", "qdrant", lexical=True, dense=True),
}


@dataclass(frozen=True)
class ExportedDocuments:
    """Encoded documents to write for another tool.

    Attributes:
      batches: ids and texts of consecutive documents, with their embeddings: `csr_array` [n, V] of
        lexical fields, float32 [n, M, N] of others.
      words: words of the terms, [V]; empty for dense embeddings.
      topology: topology of dense embeddings.
      quantise: factor of Lucene's weights, which are then rounded; None keeps the weights.
    """

    batches: Iterable[Batch]
    words: Sequence[str] = ()
    topology: str = ""
    quantise: float | None = None


def check(name: str, fields: str, *, lexical: bool) -> None:
    """Raises a UserError if a format does not hold the embeddings of `fields`."""
    export_format = FORMATS[name]
    if not (export_format.lexical if lexical else export_format.dense):
        expected, actual = ("dense", "lexical") if lexical else ("lexical", "dense")
        raise UserError(
            f"--format={name} is for {expected} fields, and {fields} is {actual}; use "
            f"--format={export_format.instead}."
        )


def write(name: str, folder: Path, export: ExportedDocuments) -> int:
    """Writes documents in a format; returns their number.

    Raises:
      UserError: the format cannot hold the documents.
    """
    module = importlib.import_module(f"{__name__}.{FORMATS[name].module}")
    return getattr(module, f"write_{name}")(folder, export)
