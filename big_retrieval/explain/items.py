"""The texts or images of a source of records, as a trained model takes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, Pairs
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.damage import SkippedRecords, record_at
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import RecordSource, column_of, place_of
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel


def open_data(config: Config, data: str, *, texts: bool = True) -> RecordSource:
    """The records that --data names.

    Args:
      config: of the model.
      data: "data" or "evals.NAME", a source of the config; else a file or folder of pairs.
      texts: whether the captions of pairs are read; records without one are damaged then.

    Raises:
      UserError: there is no such source or file.
    """
    kind, _, name = data.partition(".")
    if data == "data":
        return make_source(_pictures(config.data, texts))
    if kind == "evals" and name in config.evals and getattr(config.evals[name], "data", None):
        return make_source(_pictures(config.evals[name].data, texts))  # type: ignore[union-attr]
    if not data or not (Path(data).exists() or any(sign in data for sign in "*{")):
        known = ", ".join(["data", *(f"evals.{each}" for each in sorted(config.evals))])
        raise UserError(
            f"--data is {data!r}, which is no file; give a file of pairs, or a source of the "
            f"model's configuration: {known}."
        )
    # A file of texts alone has no images, and texts under the names of their fields.
    fields = config.encoded.values()
    image = "image" if any(field.modality == "image" for field in fields) else ""
    text = "captions" if any(field.column == "captions" for field in fields) else ""
    return make_source(_pictures(Pairs(path=data, image=image, text=text), texts))


def _pictures(source: Any, texts: bool) -> Any:
    """A source's configuration; without its captions where they are not wanted."""
    return source if texts else source.without_texts()


def reader_of(model: "TrainedModel", field: str) -> FieldReader:
    """How a field of the model is read."""
    return make_readers(model.config, model.tokenizer)[field]


def values_of(
    source: RecordSource, reader: FieldReader, records: np.ndarray, skipped: SkippedRecords
) -> Iterator[tuple[int, Any]]:
    """(record, image or text) of some records; every text of a record that has several.

    Args:
      source: the records.
      reader: of the field.
      records: their indices.
      skipped: counts those that are damaged.

    Raises:
      UserError: a record has no such column, or all are damaged.
    """
    for record in records.tolist():
        try:
            with record_at(place_of(source, record)):
                values = _values(source, reader, record)
        except Damaged as problem:
            skipped.add(problem)
            continue
        yield from ((record, value) for value in values)
    skipped.check(len(records))


def _values(source: RecordSource, reader: FieldReader, record: int) -> Sequence[Any]:
    if reader.field.modality == "text":
        return source_texts(source, record, reader)
    value = column_of(source[record], reader.field.column, source.name)
    return (transforms.picture(value, place_of(source, record)),)
