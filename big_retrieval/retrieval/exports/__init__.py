"""Encoded documents in the formats of other tools: one module for each format, named like it.

Such a module has `write(folder, export)`, which writes all files and returns the number of
documents. `FORMATS` has what is known of the formats without importing their modules.
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
    """What a format holds.

    Attributes:
      file: the file that a user opens first.
      lexical: whether it holds values of lexical fields.
      dense: whether it holds the embeddings of all other fields.
      instead: the format that holds what this one does not.
    """

    file: str
    lexical: bool = False
    dense: bool = False
    instead: str = ""


FORMATS = {
    "lucene": ExportFormat("documents.jsonl", lexical=True, instead="npz or qdrant"),
    "seismic": ExportFormat("documents.jsonl", lexical=True, instead="npz or qdrant"),
    "csr": ExportFormat("documents.npz", lexical=True, instead="npz"),
    "npz": ExportFormat("documents.npz", dense=True, instead="csr"),
    "qdrant": ExportFormat("upload.py", lexical=True, dense=True),
}


@dataclass(frozen=True)
class ExportedDocuments:
    """Encoded documents that are written for another tool.

    Attributes:
      batches: ids and texts of consecutive documents, with their embeddings: `csr_array` [n, V] of
        lexical fields, float32 [n, M, N] of others.
      words: of the terms, [V]; empty for dense embeddings.
      topology: of dense embeddings.
      quantise: see `lucene.write`.
    """

    batches: Iterable[Batch]
    words: Sequence[str] = ()
    topology: str | Mapping[str, Any] = ""
    quantise: float | None = None


def check(name: str, fields: str, *, lexical: bool) -> None:
    """Raises a UserError if a format does not hold embeddings of a kind.

    Args:
      name: of the format.
      fields: whose embeddings are written, for the message.
      lexical: whether these are lexical.
    """
    found = FORMATS[name]
    if not (found.lexical if lexical else found.dense):
        kinds = ("dense", "lexical") if lexical else ("lexical", "dense")
        raise UserError(
            f"--format={name} is for {kinds[0]} fields, and {fields} is {kinds[1]}; use "
            f"--format={found.instead}."
        )


def write(name: str, folder: Path, export: ExportedDocuments) -> int:
    """Writes documents in a format; returns their number.

    Raises:
      UserError: the format cannot hold the documents.
    """
    return importlib.import_module(f"{__name__}.{name}").write(folder, export)
