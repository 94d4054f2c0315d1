"""Checks of the sources of judged pairs; see `big_retrieval.checks`."""

import math
from collections.abc import Iterator

from big_retrieval.config import Config, Graded, GradedScenes

LIMIT = 2**31  # seeds are 32-bit integers
MOST_DOCUMENTS = 1_000_000  # every query is compared with all of them at the start
SCENE_TEXTS = ("query", "title")


def graded(path: str, source: Graded) -> Iterator[str]:
    """What is wrong with a source of judged pairs, a sentence each; its path is checked elsewhere.

    Args:
      path: the key of the source, such as config.data.
      source: what it is.
    """
    names = {key: getattr(source, key) for key in ("query", "document", "score")}
    for key, name in names.items():
        if not name:
            yield f"{path}.{key} is empty; name the column of the pairs."
    if len(set(names.values())) < len(names):
        said = ", ".join(f"{path}.{key} {name!r}" for key, name in names.items())
        yield f"{said}: query, document and score need three columns."
    if not (math.isfinite(source.s_max) and source.s_max >= 1):
        yield f"{path}.s_max is {source.s_max}; it must be 1 or more."
    if not (math.isfinite(source.least) and source.least >= 0):
        yield f"{path}.least is {source.least}; it must be 0 (keep all pairs) or more."
    for term in source.rename:
        part, _, rest = term.partition(".")
        column, _, name = rest.partition("=")
        if part not in ("pairs", "queries", "documents") or not column or not name:
            yield f"{path}.rename has {term!r}; write such as queries.text=query."
    if not source.text:
        yield f"{path}.text is empty; name the columns of texts, such as ('query', 'title')."
    for key in ("where", "where_documents"):
        for term in getattr(source, key):
            if not term.partition("=")[0] or "=" not in term:
                yield f"{path}.{key} has {term!r}; write column=value, such as split=train."
    for key, needs in (
        ("query_key", "queries"),
        ("document_key", "documents"),
        ("where_documents", "documents"),
        ("images", "image"),
    ):
        if getattr(source, key) and not getattr(source, needs):
            yield f"{path}.{key} is set, but {path}.{needs} is empty; give both or neither."
    for key in ("image_key", "image_value"):
        if source.images and not getattr(source, key):
            yield f"{path}.{key} is empty; name the column of {path}.images."


def graded_scenes(path: str, source: GradedScenes) -> Iterator[str]:
    """What is wrong with generated judged pairs, a sentence each.

    Args:
      path: the key of the source.
      source: what it is.
    """
    if source.size < 16:
        yield f"{path}.size is {source.size}; shapes need at least 16 pixels to differ."
    if not 1 <= source.count <= MOST_DOCUMENTS:
        yield f"{path}.count is {source.count}; it must be from 1 to {MOST_DOCUMENTS}."
    if not 0 <= source.seed < LIMIT:
        yield f"{path}.seed is {source.seed}; it must be from 0 to {LIMIT - 1}."


def columns(c: Config) -> Iterator[str]:
    """What fields want of judged training pairs that these do not have, a sentence each."""
    for name, field in c.fields.items():
        path, images = f"config.fields.{name}.column", field.modality == "image"
        if isinstance(c.data, Graded) and images:
            if not c.data.image:
                yield (
                    f"config.data.image is empty, but config.fields.{name} reads images; name the "
                    "column of the documents' images."
                )
            elif field.column != "image":
                yield f"{path} is {field.column!r}; judged pairs have their image in 'image'."
        if not isinstance(c.data, GradedScenes) or field.modality not in ("text", "image"):
            continue
        known = ("image",) if images else SCENE_TEXTS
        if field.column not in known:
            yield (
                f"{path} is {field.column!r}; generated judged pairs have "
                f"{'images' if images else 'texts'} in {' and '.join(map(repr, known))}."
            )
