"""Which of the model's fields are searched, and rows or embeddings of texts and images."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config
from big_retrieval.data.skipped import LeftOut
from big_retrieval.errors import Damaged, UserError
from big_retrieval.retrieval.documents import Chunk
from big_retrieval.runtime.reading import reading

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

TEXTS, IMAGES = 1024, 256  # records that are read and encoded at a time


def document_fields(config: Config, wanted: str) -> dict[str, float]:
    """The fields that documents are indexed by, with their weights in the average.

    Args:
      config: of the model.
      wanted: as --field says: "title", or "image=0.9,title=0.1"; "": all of the document side.

    Raises:
      UserError: no such field.
    """
    from big_retrieval.evals.modes import parse_weighting

    if wanted:
        return parse_weighting(wanted, config.encoded, "--field")
    return {n: f.weight for n, f in config.fields.items() if f.side == "document"}


def query_field(config: Config, wanted: str, flag: str = "query_field") -> str:
    """The field that queries are read by.

    Args:
      config: of the model.
      wanted: its name; "": the only text field of the query side, or the only text field.
      flag: the name of the flag, for messages.

    Raises:
      UserError: no such field, or several that it could be.
    """
    if wanted:
        if wanted not in config.encoded:
            known = ", ".join(sorted(config.encoded))
            raise UserError(f"--{flag}: the model has no field {wanted!r}; it has: {known}.")
        return wanted
    texts = [name for name, field in config.encoded.items() if field.modality == "text"]
    asking = [name for name in texts if config.fields[name].side == "query"]
    for names in (asking, texts):
        if len(names) == 1:
            return names[0]
    known = ", ".join(sorted(config.encoded))
    raise UserError(f"--{flag} is missing: the model could read a query by any of {known}.")


def rows_of(
    model: "TrainedModel", values: Sequence[Any], field: str, titles: Sequence[str] = ()
) -> Any:
    """Texts (with titles) or images through a field of the model.

    Returns:
      Values of a lexical field as scipy `csr_array` [n, V], embeddings of others as float32 [n, M,
      N].
    """
    if model.config.fields[field].modality == "text":
        return model.encode_texts(values, field, titles)
    if model.config.fields[field].modality == "image":
        return model.encode_images(values, field)
    return model.encode(values, field)


def encode_chunk(model: "TrainedModel", chunk: Chunk, fields: Mapping[str, float]) -> Any:
    """The documents of a chunk: `csr_array` [n, V] of a lexical field, else embeddings [n, M, N].

    Of several fields, embeddings (lexical ones behind the gate of each) are averaged as in
    evaluations; one that a document lacks has weight 0.

    Raises:
      Damaged: an image cannot be decoded.
    """
    if len(fields) == 1:
        (name,) = fields
        return rows_of(model, chunk.values[name], name, chunk.titles.get(name, ()))
    from big_retrieval import similarity
    from big_retrieval.evals.encoding import average, placed

    embeddings: dict[str, Any] = {}
    present: dict[str, np.ndarray] = {}
    for name in fields:
        has = present[name] = np.array([value is not None for value in chunk.values[name]])  # [n]
        if not has.any():
            continue
        part = chunk.take(np.flatnonzero(has).tolist())
        found = rows_of(model, part.values[name], name, part.titles.get(name, ()))
        embeddings[name] = placed(found, np.flatnonzero(has), len(chunk))
    return average(similarity.topology(model.config.topology), embeddings, fields, present)


def usable(chunk: Chunk, encode: Callable[[Chunk], Any], left_out: LeftOut) -> Chunk:
    """A chunk without the rows that cannot be encoded, which are counted.

    Args:
      chunk: documents or queries that cannot be encoded together.
      encode: of a chunk; raises `Damaged`.
      left_out: told what is wrong with each row.
    """
    good = []
    for row, name in enumerate(chunk.ids):
        part = chunk.take([row])
        try:
            with reading(name):
                encode(part)
            good.append(row)
        except Damaged as problem:
            left_out.add(problem)
    return chunk.take(good)
