"""Texts or images of a source, as input of a trained model."""

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
    """Opens the source of --data.

    Args:
      data: "data" or "evals.NAME" for a source of the config, else a file or folder of pairs.
      texts: True to read the captions of pairs; records without captions are then damaged.

    Raises:
      UserError: the source or file is missing.
    """
    group, _, name = data.partition(".")
    if data == "data":
        source = config.data
    elif group == "evals" and name in config.evals and config.evals[name].data:
        source = config.evals[name].data
    elif data and (Path(data).exists() or any(sign in data for sign in "*{")):
        # A file of only texts has no images, and texts under the names of their fields.
        fields = config.encoded.values()
        image = "image" if any(field.modality == "image" for field in fields) else ""
        text = "captions" if any(field.column == "captions" for field in fields) else ""
        source = Pairs(path=data, image=image, text=text)
    else:
        choices = ", ".join(["data", *(f"evals.{name}" for name in sorted(config.evals))])
        raise UserError(
            f"--data is {data!r}, which is no file; give a file of pairs, or a source of the "
            f"model's configuration: {choices}."
        )
    return make_source(source if texts else source.without_texts())


def reader_of(model: "TrainedModel", field: str) -> FieldReader:
    """Returns the reader of a field of the model."""
    return make_readers(model.config, model.tokenizer)[field]


def values_of(
    source: RecordSource, reader: FieldReader, records: np.ndarray, skipped: SkippedRecords
) -> Iterator[tuple[int, Any]]:
    """Yields (record index, image or text) for every image or text of records.

    Args:
      records: record indices.
      skipped: counts damaged records.

    Raises:
      UserError: a record does not have the column, or all records are damaged.
    """
    for record in records.tolist():
        try:
            with record_at(place_of(source, record)):
                values = _values(source, reader, record)
        except Damaged as error:
            skipped.add(error)
            continue
        yield from ((record, value) for value in values)
    skipped.check(len(records))


def _values(source: RecordSource, reader: FieldReader, record: int) -> Sequence[Any]:
    if reader.field.modality == "text":
        return source_texts(source, record, reader)
    value = column_of(source[record], reader.field.column, source.name)
    return (transforms.picture(value, place_of(source, record)),)
