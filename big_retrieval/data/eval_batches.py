"""One evaluation batch from indices: every text or image of the records, as it is.

As in training (batches.py), everything is a pure function of its arguments, and damaged records are
noted under `damaged`.
"""

from typing import Any

import numpy as np

from big_retrieval.data.batches import Batch
from big_retrieval.data.damage import DamageNote, note, of_data, record_at
from big_retrieval.data.fields.reader import FieldReader, counts, stack
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged


def eval_items(source: RecordSource, reader: FieldReader) -> np.ndarray:
    """What an evaluation of a field goes through: int64 [n, 2] of record and value in the record.

    Records without a usable text are left out: there is nothing that could be asked.
    """
    found = counts(reader, source)
    records = np.repeat(np.arange(len(source), dtype=np.int64), found)  # [n]
    starts = np.repeat(np.cumsum(found) - found, found)  # [n]
    return np.stack([records, np.arange(len(records)) - starts], axis=1)  # [n, 2]


def eval_batch(
    source: RecordSource,
    field: str,
    reader: FieldReader,
    items: np.ndarray,
    batch_size: int,
    rows: np.ndarray,
    number: int,
) -> Batch:
    """The rows [b] of evaluation batch `number`; see `pipeline.eval_batches`."""
    places = int(number) * batch_size + rows  # [b]
    valid = places < len(items)  # [b]
    records = np.full(len(rows), -1, np.int64)  # [b]
    records[valid] = items[places[valid], 0]
    values: list[Any] = [None] * len(rows)
    damaged: list[DamageNote] = []
    for row in np.flatnonzero(valid).tolist():
        index, text = items[places[row]].tolist()
        try:
            with record_at(source.place(index)):
                values[row] = reader.value(source, index, text)
            valid[row] = values[row] is not None
        except Damaged as problem:
            damaged.append(note(index, problem))
    arrays = _stack_apart(source, reader, values, records, valid, damaged)
    batch: Batch = {field: arrays, "record": records, "valid": valid}
    return batch | ({"damaged": damaged} if damaged else {})


def _stack_apart(
    source: RecordSource,
    reader: FieldReader,
    values: list[Any],
    records: np.ndarray,
    valid: np.ndarray,
    damaged: list[DamageNote],
) -> dict[str, np.ndarray]:
    """`stack`; a value that it cannot bear is damaged, and neither there nor valid."""
    try:
        return stack(reader, values)
    except BaseException as problem:
        if not of_data(problem):
            raise
    for row, value in enumerate(values):
        try:
            with record_at(source.place(int(records[row]))):
                stack(reader, [value])
        except Damaged as problem:
            damaged.append(note(int(records[row]), problem))
            values[row], valid[row] = None, False
    return stack(reader, values)
