"""Evaluation batches from indices: every text or image of the records, unmodified.

As in batches.py, all functions are pure, and a batch lists damaged records under `damaged`.
"""

from typing import Any

import numpy as np

from big_retrieval.data.batches import Batch
from big_retrieval.data.damage import DamageNote, is_data_error, note, record_at
from big_retrieval.data.fields.reader import FieldReader, counts, stack
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged


def eval_items(source: RecordSource, reader: FieldReader) -> np.ndarray:
    """Returns the items of an evaluation, int64 [n, 2]: record index and position in the record.

    Records without a usable text have no items.
    """
    lengths = counts(reader, source)
    records = np.repeat(np.arange(len(source), dtype=np.int64), lengths)  # [n]
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)  # [n]
    return np.stack([records, np.arange(len(records)) - starts], axis=1)  # [n, 2]


def eval_batch(
    source: RecordSource,
    field: str,
    reader: FieldReader,
    value_ids: np.ndarray,
    batch_size: int,
    rows: np.ndarray,
    batch_index: int,
) -> Batch:
    """Returns the rows [b] of one evaluation batch; see `pipeline.eval_batches`."""
    places = int(batch_index) * batch_size + rows  # [b]
    valid = places < len(value_ids)  # [b]
    records = np.full(len(rows), -1, np.int64)  # [b]
    records[valid] = value_ids[places[valid], 0]
    values: list[Any] = [None] * len(rows)
    damaged: list[DamageNote] = []
    for row in np.flatnonzero(valid).tolist():
        index, text = value_ids[places[row]].tolist()
        try:
            with record_at(source.place(index)):
                values[row] = reader.value(source, index, text)
            valid[row] = values[row] is not None
        except Damaged as error:
            damaged.append(note(index, error))
    arrays = _stack_usable(source, reader, values, records, valid, damaged)
    batch: Batch = {field: arrays, "record": records, "valid": valid}
    return batch | ({"damaged": damaged} if damaged else {})


def _stack_usable(
    source: RecordSource,
    reader: FieldReader,
    values: list[Any],
    records: np.ndarray,
    valid: np.ndarray,
    damaged: list[DamageNote],
) -> dict[str, np.ndarray]:
    """Stacks values [b]; a value that cannot be stacked becomes None, invalid and damaged."""
    try:
        return stack(reader, values)
    except BaseException as error:
        if not is_data_error(error):
            raise
    for row, value in enumerate(values):
        try:
            with record_at(source.place(int(records[row]))):
                stack(reader, [value])
        except Damaged as error:
            damaged.append(note(int(records[row]), error))
            values[row], valid[row] = None, False
    return stack(reader, values)
