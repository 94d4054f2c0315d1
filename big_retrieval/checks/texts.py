"""Checks of the sources of text retrieval; see `big_retrieval.checks`."""

import math
from collections.abc import Iterator

from big_retrieval.config import Beir, Config, Dpr, Source, Triples

COLUMNS = ("query", "text", "title")


def texts(path: str, source: Source) -> Iterator[str]:
    """What is wrong with a source of text retrieval, a sentence each; of others nothing.

    Args:
      path: the key of the source, such as config.data.
      source: what it is; whether it has a path is checked elsewhere.
    """
    if isinstance(source, Beir):
        if not source.split:
            yield f"{path}.split is empty; name that of qrels/<split>.tsv, such as 'test'."
        if not (math.isfinite(source.least) and source.least >= 0):
            yield f"{path}.least is {source.least}; it must be 0 (keep all pairs) or more."
    if isinstance(source, Triples) and bool(source.queries) != bool(source.documents):
        key = "documents" if source.queries else "queries"
        yield f"{path}.{key} is empty; triples of ids need the files of both texts, of texts none."


def columns(c: Config) -> Iterator[str]:
    """What fields want of training texts that these do not have, a sentence each."""
    if isinstance(c.data, Beir) and c.data.least <= 0 and not c.labels.score:
        yield (
            "config.data.least is 0, so that pairs judged as wrong would be trained as right ones; "
            "set it to 1, or name config.labels.score."
        )
    for name, field in c.fields.items():
        path = f"config.fields.{name}"
        if isinstance(c.data, Beir | Dpr | Triples) and field.modality == "image":
            yield f"{path} reads images; config.data of the type {c.data.type!r} has texts alone."
        elif (
            isinstance(c.data, Dpr | Triples)
            and field.modality == "text"
            and field.column not in COLUMNS
        ):
            yield (
                f"{path}.column is {field.column!r}; config.data of the type {c.data.type!r} has "
                f"texts in {', '.join(map(repr, COLUMNS))}."
            )
