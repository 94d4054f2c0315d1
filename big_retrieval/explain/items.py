"""The texts or images of a source of records, as a trained model takes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, Pairs
from big_retrieval.data import images
from big_retrieval.data.build import field_specs, make_source
from big_retrieval.data.fields import FieldSpec, source_texts
from big_retrieval.data.sources import Source, column_of, place_of
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.loading import TrainedModel


def open_data(config: Config, data: str) -> Source:
    """The records that --data names.

    Args:
      config: of the model.
      data: "data" or "evals.NAME", a source of the config; else a file or folder of pairs.

    Raises:
      UserError: there is no such source or file.
    """
    kind, _, name = data.partition(".")
    if data == "data":
        return make_source(config.data)
    if kind == "evals" and name in config.evals and getattr(config.evals[name], "data", None):
        return make_source(config.evals[name].data)
    if not data or not (Path(data).exists() or any(sign in data for sign in "*{")):
        known = ", ".join(["data", *(f"evals.{each}" for each in sorted(config.evals))])
        raise UserError(
            f"--data is {data!r}, which is no file; give a file of pairs, or a source of the "
            f"model's configuration: {known}."
        )
    # A file of texts alone has no images, and texts under the names of their fields.
    fields = config.fields.values()
    image = "image" if any(field.kind == "image" for field in fields) else ""
    text = "captions" if any(field.column == "captions" for field in fields) else ""
    return make_source(Pairs(path=data, image=image, text=text))


def spec_of(model: "TrainedModel", field: str) -> FieldSpec:
    """How a field of the model is read."""
    return field_specs(model.config, model.tokenizer)[field]


def evenly(source: Source, count: int | None) -> np.ndarray:
    """`count` records of a source evenly spaced, or all: int64 [n], ascending."""
    size = len(source)
    if count is None or count >= size:
        return np.arange(size)
    return ((np.arange(count) + 0.5) * size / count).astype(np.int64)


def values_of(source: Source, spec: FieldSpec, records: np.ndarray) -> Iterator[tuple[int, Any]]:
    """(record, image or text) of some records; every text of a record that has several.

    Args:
      source: the records.
      spec: of the field.
      records: their indices.

    Raises:
      UserError: a record is damaged or has no such column.
    """
    for record in records.tolist():
        if spec.kind == "text":
            yield from ((record, text) for text in source_texts(source, record, spec))
        else:
            value = column_of(source[record], spec.column, source.name)
            yield record, images.picture(value, place_of(source, record))
