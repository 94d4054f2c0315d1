"""Fields of a model for search, and encoding of documents and queries from files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.damage import SkippedRecords
from big_retrieval.data.formats.records import Records
from big_retrieval.errors import Damaged, UserError
from big_retrieval.retrieval.documents import DocumentReader, DocumentRow, read
from big_retrieval.runtime.activity import reading
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

TEXTS, IMAGES = 1024, 256  # records read and encoded at a time


def document_fields(config: Config, weighting: str) -> dict[str, float]:
    """Returns the fields that encode documents, with their weights in the average.

    Args:
      weighting: value of --field, "title" or "image=0.9,title=0.1"; empty for the document side.
    """
    from big_retrieval.evals.modes import parse_weighting

    if weighting:
        return parse_weighting(weighting, config.encoded, "--field")
    return {n: f.weight for n, f in config.fields.items() if f.side == "document"}


def query_field(config: Config, name: str, flag: str = "query_field") -> str:
    """Returns the field that encodes queries; raises a UserError if several could.

    Args:
      name: its name; empty for the only text field of the query side, or the only text field.
      flag: name of the flag, for messages.
    """
    available = ", ".join(sorted(config.encoded))
    if name:
        if name not in config.encoded:
            raise UserError(f"--{flag}: the model has no field {name!r}. It has: {available}.")
        return name
    texts = [name for name, field in config.encoded.items() if field.modality == "text"]
    query_side = [name for name in texts if config.fields[name].side == "query"]
    for names in (query_side, texts):
        if len(names) == 1:
            return names[0]
    raise UserError(f"--{flag} is missing: queries could be read by any of {available}.")


def rows_of(
    model: "TrainedModel", values: Sequence[Any], field: str, *, progress: bool | None = False
) -> Any:
    """Encodes texts, (title, text) pairs or images: CSR [n, V] if lexical, else [n, M, N].

    Args:
      progress: True shows a progress bar; None shows it on terminals only.
    """
    modality = model.config.fields[field].modality
    if modality == "text":
        pairs = [("", value) if isinstance(value, str) else value for value in values]
        titles = [title for title, _ in pairs]
        titles = titles if any(titles) else ()
        return model.encode_texts([text for _, text in pairs], field, titles, progress=progress)
    if modality == "image":
        return model.encode_images(values, field, progress=progress)
    return model.encode(values, field, progress=progress)


def encode_rows(
    model: "TrainedModel", rows: Sequence[DocumentRow], fields: Mapping[str, float]
) -> Any:
    """Encodes documents: CSR [n, V] for lexical fields, else embeddings [n, M, N].

    Several fields are averaged as in evaluations, lexical fields after their gates. A missing field
    has weight 0. Raises `Damaged` if an image cannot be decoded.
    """
    if len(fields) == 1:
        (name,) = fields
        return rows_of(model, [row.values[name] for row in rows], name)
    from big_retrieval.evals.encoding import average, placed

    embeddings: dict[str, Any] = {}
    present: dict[str, np.ndarray] = {}
    for name in fields:
        values = [row.values[name] for row in rows]
        present[name] = np.array([value is not None for value in values])  # [n]
        if present[name].any():
            encoded_rows = rows_of(model, [x for x in values if x is not None], name)
            embeddings[name] = placed(encoded_rows, np.flatnonzero(present[name]), len(rows))
    return average(topology_part(model.config.topology), embeddings, fields, present)


def encoded(
    records: Records,
    reader: DocumentReader,
    size: int,
    encode: Callable[[Sequence[DocumentRow]], Any],
    span: range,
) -> Iterator[tuple[list[DocumentRow], Any]]:
    """Yields rows of records with their result of `encode`, and shows the progress.

    Skips and counts records that cannot be read or encoded (`Damaged`); raises a UserError if none
    can. `size` and `span` are as in `documents.read`.
    """
    skipped, progress = SkippedRecords(reader.noun), progress_bar(reader.noun, len(span))
    for rows in read(records, reader, size, skipped, span):
        try:
            embeddings = encode(rows)
        except Damaged:  # encodes rows one by one to find the damaged rows
            rows = [row for row in rows if _can_encode(row, encode, skipped)]
            if not rows:
                continue
            embeddings = encode(rows)
        yield rows, embeddings
        progress.total = len(span) - skipped.count
        progress.update(len(rows))
    skipped.check(len(span))
    progress.close()
    skipped.close()


def _can_encode(
    row: DocumentRow, encode: Callable[[Sequence[DocumentRow]], Any], skipped: SkippedRecords
) -> bool:
    try:
        with reading(row.id):
            encode([row])
    except Damaged as error:
        skipped.add(error)
        return False
    return True
