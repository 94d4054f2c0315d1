"""The model's fields that are searched, and the encoding of documents and queries from files."""

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
      UserError: there is no such field, or several fields come into question.
    """
    if wanted:
        if wanted not in config.encoded:
            known = ", ".join(sorted(config.encoded))
            raise UserError(f"--{flag}: the model has no field {wanted!r}; it has: {known}.")
        return wanted
    texts = [name for name, field in config.encoded.items() if field.modality == "text"]
    of_queries = [name for name in texts if config.fields[name].side == "query"]
    for names in (of_queries, texts):
        if len(names) == 1:
            return names[0]
    known = ", ".join(sorted(config.encoded))
    raise UserError(f"--{flag} is missing: the model could read a query by any of {known}.")


def rows_of(model: "TrainedModel", items: Sequence[Any], field: str) -> Any:
    """Encodes texts, pairs of title and text, or images by a field of the model.

    Returns:
      Values of a lexical field as scipy `csr_array` [n, V], embeddings of others as float32 [n, M,
      N].
    """
    modality = model.config.fields[field].modality
    if modality == "text":
        pairs = [("", item) if isinstance(item, str) else item for item in items]
        titles = [title for title, _ in pairs]
        titles = titles if any(titles) else ()
        return model.encode_texts([text for _, text in pairs], field, titles, progress=False)
    if modality == "image":
        return model.encode_images(items, field, progress=False)
    return model.encode(items, field, progress=False)


def encode_rows(
    model: "TrainedModel", rows: Sequence[DocumentRow], fields: Mapping[str, float]
) -> Any:
    """Encodes documents: `csr_array` [n, V] of a lexical field, else embeddings [n, M, N].

    The embeddings of several fields are averaged as in evaluations, lexical ones behind their
    gates. A field that a document lacks has weight 0.

    Raises:
      Damaged: an image cannot be decoded.
    """
    if len(fields) == 1:
        (name,) = fields
        return rows_of(model, [row.values[name] for row in rows], name)
    from big_retrieval.evals.encoding import average, placed

    embeddings: dict[str, Any] = {}
    present: dict[str, np.ndarray] = {}
    for name in fields:
        has = present[name] = np.array([row.values[name] is not None for row in rows])  # [n]
        if has.any():
            items = [row.values[name] for row in rows if row.values[name] is not None]
            found = rows_of(model, items, name)
            embeddings[name] = placed(found, np.flatnonzero(has), len(rows))
    return average(topology_part(model.config.topology), embeddings, fields, present)


def encoded(
    records: Records,
    reader: DocumentReader,
    size: int,
    encode: Callable[[Sequence[DocumentRow]], Any],
    span: range | None = None,
) -> Iterator[tuple[list[DocumentRow], Any]]:
    """Reads and encodes records, and shows the progress.

    Records that cannot be read or encoded are skipped and counted; a message names the first.

    Args:
      records: documents or queries.
      reader: which columns are read.
      size: records that are read and encoded at a time.
      encode: of rows; raises `Damaged`.
      span: as in `documents.read`.

    Yields:
      Rows, and what `encode` makes of them.

    Raises:
      UserError: no record can be used.
    """
    total = len(records) if span is None else len(span)
    skipped, progress = SkippedRecords(reader.what), progress_bar(reader.what, total)
    for rows in read(records, reader, size, skipped, span):
        try:
            found = encode(rows)
        except Damaged:  # one of them, which is found one by one
            rows = [row for row in rows if _usable(row, encode, skipped)]
            if not rows:
                continue
            found = encode(rows)
        yield rows, found
        progress.total = total - skipped.count
        progress.update(len(rows))
    skipped.check(total)
    progress.close()
    skipped.close()


def _usable(
    row: DocumentRow, encode: Callable[[Sequence[DocumentRow]], Any], skipped: SkippedRecords
) -> bool:
    """Whether a row can be encoded; it is counted where it cannot."""
    try:
        with reading(row.id):
            encode([row])
    except Damaged as problem:
        skipped.add(problem)
        return False
    return True
