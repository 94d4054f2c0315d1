"""Fields of an evaluation's records, encoded; those of a query or document averaged by weights."""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.config.topologies import Topology
from big_retrieval.data.eval_batches import eval_items
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.pipeline import Reading, eval_batches
from big_retrieval.data.sources import (
    BaseSource,
    Record,
    RecordSource,
    place_of,
    texts_of,
    value_of,
)
from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings, Encoder


def encode_source(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    name: str,
    reader: FieldReader,
    reading: Reading | None = None,
    *,
    alone: bool = False,
) -> tuple[Embeddings, np.ndarray]:
    """All images, or all texts, of a source as embeddings, and the record [n] of each.

    A damaged image is a black one and counted where `reading` counts, else an error. With `alone`
    the rows come in any order, see `Encoder.encode`. Evaluations go without: processes of a run
    read parts of one batch, which cannot be put together by length, and metrics must not depend on
    the number of processes.
    """
    if alone:
        return encoder.encode(weights, name, source, reader, reading=reading)
    batches = eval_batches(
        source,
        {name: reader},
        field=name,
        batch_size=encoder.batch_size,
        rows=encoder.rows,
        reading=reading,
    )
    return encoder.embeddings(weights, name, batches)


def encode_first(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    name: str,
    reader: FieldReader,
    reading: Reading | None = None,
    *,
    alone: bool = False,
) -> tuple[Embeddings, np.ndarray]:
    """As `encode_source`, but of several texts of a record the first only."""
    if reader.field.modality != "text":
        return encode_source(encoder, weights, source, name, reader, reading, alone=alone)
    items = eval_items(source, reader)  # [n, 2]
    items = items[items[:, 1] == 0]
    if not len(items):
        raise UserError(
            f"{source.name} has no text in {reader.field.column!r}: nothing can be encoded."
        )
    chosen = ChosenTexts(source, reader, items)
    embeddings, places = encode_source(encoder, weights, chosen, name, reader, reading, alone=alone)
    return embeddings, items[places, 0]


@dataclass(frozen=True)
class EncodedFields:
    """The fields of some queries or documents, n of them.

    Attributes:
      embeddings: field name -> [n, M, N]; 0 where it is absent.
      present: field name -> bool [n]; False where a query or document lacks the field.
    """

    embeddings: Mapping[str, Embeddings]
    present: Mapping[str, np.ndarray]

    def any(self, weights: Mapping[str, float]) -> np.ndarray:
        """bool [n]: which have a field with a weight."""
        return np.any(
            [present for name, present in self.present.items() if weights.get(name)], axis=0
        )


def encode_fields(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    reading: Reading | None = None,
    *,
    alone: bool = False,
) -> EncodedFields:
    """Encodes some fields of all records of a source; of several texts the first.

    Args:
      encoder: encodes on the devices.
      weights: the parameters.
      source: queries or documents, one a record.
      readers: the wanted fields: name -> how it is read.
      reading: by what records are read; counts damaged ones.
      alone: see `encode_source`.
    """
    embeddings, present = {}, {}
    for name, reader in readers.items():
        found, records = encode_first(encoder, weights, source, name, reader, reading, alone=alone)
        present[name] = np.zeros(len(source), bool)
        present[name][records] = True
        embeddings[name] = placed(found, records, len(source))
    return EncodedFields(embeddings, present)


def placed(embeddings: Embeddings, records: np.ndarray, rows: int) -> Embeddings:
    """Embeddings [n, ...] as the rows [n] of as many as there are records; 0 elsewhere."""
    if isinstance(embeddings, np.ndarray):
        out = np.zeros((rows, *embeddings.shape[1:]), embeddings.dtype)
        out[records] = embeddings
        return out
    ones = np.ones(len(records), np.float32)
    where = (ones, (records, np.arange(len(records))))
    return scipy.sparse.csr_array(where, shape=(rows, len(records))) @ embeddings


def average(
    topology: Topology,
    embeddings: Mapping[str, Embeddings],
    weights: Mapping[str, float],
    present: Mapping[str, np.ndarray],
) -> Embeddings:
    """The weighted average of fields, brought back onto the topology.

    "Generalized contrastive learning", the authors' evaluation: a missing field has weight 0, the
    others are divided by their sum, and the average is normalised again.

    Args:
      topology: averages and projects.
      embeddings: field name -> [n, M, N].
      weights: field name -> its weight; fields without one are left out.
      present: field name -> bool [n]; a field that is not in it is everywhere.

    Returns:
      float32 [n, M, N], 0 where no field is there.
    """
    names = [name for name in embeddings if weights.get(name, 0) > 0]
    rows = embeddings[names[0]].shape[0]
    of_rows = [
        np.float32(weights[n]) * present.get(n, np.ones(rows, bool)) for n in names
    ]  # [n] each
    if scipy.sparse.issparse(embeddings[names[0]]):
        return _sparse_average([embeddings[n] for n in names], np.stack(of_rows))
    mixed = topology.combine([jnp.asarray(embeddings[n]) for n in names], jnp.asarray(of_rows))
    return np.asarray(topology.project(mixed), np.float32)


def _sparse_average(embeddings: Sequence[Any], weights: np.ndarray) -> scipy.sparse.csr_array:
    """Weighted average of lexical fields [n, V], weights [F, n]; plain, as of inner products."""
    total = weights.sum(axis=0)
    weights = weights / np.where(total > 0, total, 1)
    parts = [scipy.sparse.diags_array(s) @ x for s, x in zip(weights, embeddings, strict=True)]
    return scipy.sparse.csr_array(functools.reduce(operator.add, parts).astype(np.float32))


class ChosenRecords(BaseSource):
    """Some records of another source, int64 [n]."""

    def __init__(self, source: RecordSource, records: np.ndarray) -> None:
        self.name, self._source, self._records = source.name, source, records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._source[int(self._records[index])]

    def place(self, index: int) -> str:
        """Where the record stands in the other source."""
        return place_of(self._source, int(self._records[index]))

    def value(self, index: int, column: str) -> Any:
        """One value of the record, without reading the others."""
        return value_of(self._source, int(self._records[index]), column)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of the record, without reading its image."""
        return texts_of(self._source, int(self._records[index]), column)


class ChosenTexts:
    """Some texts of another source, each a record of its own."""

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, source: RecordSource, reader: FieldReader, items: np.ndarray) -> None:
        self.name = source.name
        self._source, self._reader, self._items = source, reader, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise NotImplementedError("only texts are read from chosen items")

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        text = self._text(index)
        return (text,) if isinstance(text, str) else text[1:]

    def title(self, index: int, column: str) -> str:
        text = self._text(index)
        return "" if isinstance(text, str) else text[0]

    def captions(self) -> Iterator[str]:
        return iter(())

    def _text(self, index: int) -> Text:
        record, place = self._items[index].tolist()
        return source_texts(self._source, record, self._reader)[place]
