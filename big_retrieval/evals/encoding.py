"""Encoded fields of an evaluation's records, and their weighted averages."""

import functools
import operator
from collections.abc import Mapping, Sequence
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
from big_retrieval.data.sources import Record, RecordSource, texts_of, value_of
from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings, Encoder

ROWS = 2**12  # averaged at a time


@dataclass(frozen=True)
class EncodedFields:
    """Fields of n queries or documents."""

    embeddings: Mapping[str, Embeddings]  # [n, M, N] by field name; 0 if the field is missing
    present: Mapping[str, np.ndarray]  # bool [n] by field name; False if the field is missing

    def any(self, weights: Mapping[str, float]) -> np.ndarray:
        """Returns True for queries or documents with at least one field of weight above 0, [n]."""
        masks = [present for name, present in self.present.items() if weights.get(name)]
        return np.any(masks, axis=0)


@dataclass(frozen=True)
class SourceEncoder:
    """Encoder of all records of a source, with the weights of a step.

    Attributes:
      reading: threads that read records, and the counter of damaged records. With a counter, a
        damaged image is counted and becomes black; without one, it raises an error.
    """

    encoder: Encoder
    weights: Any
    reading: Reading | None = None

    def encode(
        self, source: RecordSource, name: str, reader: FieldReader
    ) -> tuple[Embeddings, np.ndarray]:
        """Encodes all images or all texts; returns the embeddings and their records [n]."""
        return self.encoder.encode(self.weights, name, source, reader, reading=self.reading)

    def features(
        self, source: RecordSource, name: str, reader: FieldReader
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes a tower's last activations of all images or all texts, before the head."""
        size, rows = self.encoder.batch_size, self.encoder.rows
        batches = eval_batches(
            source, {name: reader}, field=name, batch_size=size, rows=rows, reading=self.reading
        )
        return self.encoder.features(self.weights, name, batches)

    def encode_first(
        self, source: RecordSource, name: str, reader: FieldReader
    ) -> tuple[Embeddings, np.ndarray]:
        """Encodes as `encode`, with only the first text of each record."""
        if reader.field.modality != "text":
            return self.encode(source, name, reader)
        items = eval_items(source, reader)  # [n, 2]
        items = items[items[:, 1] == 0]
        if not len(items):
            raise UserError(f"{source.name} has no text in {reader.field.column!r}.")
        embeddings, rows = self.encode(ChosenTexts(source, reader, items), name, reader)
        return embeddings, items[rows, 0]

    def encode_fields(
        self, source: RecordSource, readers: Mapping[str, FieldReader]
    ) -> EncodedFields:
        """Encodes fields of queries or documents, one per record, with the first text of each."""
        embeddings, present = {}, {}
        for name, reader in readers.items():
            rows, records = self.encode_first(source, name, reader)
            present[name] = np.zeros(len(source), bool)
            present[name][records] = True
            embeddings[name] = placed(rows, records, len(source))
        return EncodedFields(embeddings, present)


def placed(embeddings: Embeddings, records: np.ndarray, rows: int) -> Embeddings:
    """Returns an array of `rows` rows with embeddings [n, ...] at `records` [n], and 0 elsewhere.

    Returns the embeddings themselves if `records` are all rows, in order.
    """
    if len(records) == rows and np.array_equal(records, np.arange(rows)):
        return embeddings
    if isinstance(embeddings, np.ndarray):
        out = np.zeros((rows, *embeddings.shape[1:]), embeddings.dtype)
        out[records] = embeddings
        return out
    entries = (np.ones(len(records), np.float32), (records, np.arange(len(records))))
    return scipy.sparse.csr_array(entries, shape=(rows, len(records))) @ embeddings


def average(
    topology: Topology,
    embeddings: Mapping[str, Embeddings],
    weights: Mapping[str, float],
    present: Mapping[str, np.ndarray],
    *,
    overwrite: bool = False,
) -> Embeddings:
    """Computes the weighted average of fields, projected onto the topology.

    As in the evaluation of "Generalized contrastive learning": a missing field has weight 0, the
    other weights are divided by their sum, and the average is normalized again.

    Args:
      embeddings: [n, M, N] by field name.
      weights: weight by field name; a field without a weight does not count.
      present: bool [n] by field name; a missing key means all True.
      overwrite: writes the averages of dense fields into the first field's array.

    Returns:
      float32 [n, M, N], 0 for rows without a field.
    """
    names = [name for name in embeddings if weights.get(name, 0) > 0]
    everywhere = np.ones(embeddings[names[0]].shape[0], bool)
    shares = [np.float32(weights[name]) * present.get(name, everywhere) for name in names]
    if scipy.sparse.issparse(embeddings[names[0]]):
        return _sparse_average([embeddings[name] for name in names], np.stack(shares))
    first = embeddings[names[0]]
    overwrite = overwrite and first.dtype == np.float32 and first.flags.writeable
    out = first if overwrite else np.empty(first.shape, np.float32)
    # Fields are projected already. A single field, too, is projected again: its last digits change.
    for start in range(0, len(out), ROWS):
        rows = slice(start, start + ROWS)
        fields = [jnp.asarray(embeddings[name][rows]) for name in names]
        mixed = topology.combine(fields, jnp.asarray([share[rows] for share in shares]))
        out[rows] = topology.project(mixed)
    return out


def _sparse_average(embeddings: Sequence[Any], weights: np.ndarray) -> scipy.sparse.csr_array:
    """Averages lexical fields [n, V] by weights [F, n], without a projection."""
    total = weights.sum(axis=0)
    weights = weights / np.where(total > 0, total, 1)
    parts = [scipy.sparse.diags_array(s) @ x for s, x in zip(weights, embeddings, strict=True)]
    return scipy.sparse.csr_array(functools.reduce(operator.add, parts).astype(np.float32))


def chosen_rows(embeddings: Embeddings, rows: np.ndarray, *, overwrite: bool) -> Embeddings:
    """Selects rows (ascending indices); `overwrite` moves them to the start of a dense array."""
    if len(rows) == embeddings.shape[0]:
        return embeddings
    if not overwrite or not isinstance(embeddings, np.ndarray):
        return embeddings[rows]
    for start in range(0, len(rows), ROWS):  # row i comes from row i or a later one
        block = rows[start : start + ROWS]
        embeddings[start : start + len(block)] = embeddings[block]
    return embeddings[: len(rows)]


class ChosenRecords(RecordSource):
    """The records of a source at these indices, int64 [n]."""

    def __init__(self, source: RecordSource, records: np.ndarray) -> None:
        self.name, self._source, self._records = source.name, source, records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._source[int(self._records[index])]

    def place(self, index: int) -> str:
        return self._source.place(int(self._records[index]))

    def value(self, index: int, column: str) -> Any:
        return value_of(self._source, int(self._records[index]), column)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        return texts_of(self._source, int(self._records[index]), column)


class ChosenTexts(RecordSource):
    """Texts of a source, one per record: items [n, 2] of record and text in the record."""

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

    def _text(self, index: int) -> Text:
        record, text = self._items[index].tolist()
        return source_texts(self._source, record, self._reader)[text]
