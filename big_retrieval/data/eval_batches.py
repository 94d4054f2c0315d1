"""One evaluation batch from indices: every text or image of the records, as it is.

As in training (batches.py), everything is a pure function of its arguments, and damaged records are
noted under `damaged`.
"""

from typing import Any

import numpy as np

from big_retrieval.data import images
from big_retrieval.data.batches import Batch
from big_retrieval.data.damage import Lost, note, of_data, record_at
from big_retrieval.data.fields import FieldSpec, source_texts, stack
from big_retrieval.data.sources import Source, column_of, is_absent, place_of
from big_retrieval.errors import Damaged


def eval_items(source: Source, spec: FieldSpec) -> np.ndarray:
    """What an evaluation of a field goes through: int64 [n, 2] of record and text in the record.

    Records without a usable text are left out: there is nothing that could be asked.
    """
    if spec.kind == "image":
        records = np.arange(len(source), dtype=np.int64)
        return np.stack([records, np.zeros_like(records)], axis=1)  # [n, 2]
    counts = [_text_count(source, index, spec) for index in range(len(source))]
    records = np.repeat(np.arange(len(source), dtype=np.int64), counts)  # [n]
    starts = np.repeat(np.cumsum(counts) - counts, counts)  # [n]
    return np.stack([records, np.arange(len(records)) - starts], axis=1)  # [n, 2]


def eval_batch(
    source: Source,
    field: str,
    spec: FieldSpec,
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
    lost: list[Lost] = []
    for row in np.flatnonzero(valid).tolist():
        index, text = items[places[row]].tolist()
        try:
            with record_at(place_of(source, index)):
                values[row] = _item(source, spec, index, text)
            valid[row] = values[row] is not None
        except Damaged as problem:
            lost.append(note(index, problem))
    arrays = _stack_apart(source, spec, values, records, valid, lost)
    batch: Batch = {field: arrays, "record": records, "valid": valid}
    return batch | ({"damaged": lost} if lost else {})


def _stack_apart(
    source: Source,
    spec: FieldSpec,
    values: list[Any],
    records: np.ndarray,
    valid: np.ndarray,
    lost: list[Lost],
) -> dict[str, np.ndarray]:
    """`stack`; a value that it cannot bear is damaged, and neither there nor valid."""
    try:
        return stack(spec, values)
    except BaseException as problem:
        if not of_data(problem):
            raise
    for row, value in enumerate(values):
        try:
            with record_at(place_of(source, int(records[row]))):
                stack(spec, [value])
        except Damaged as problem:
            lost.append(note(int(records[row]), problem))
            values[row], valid[row] = None, False
    return stack(spec, values)


def _item(source: Source, spec: FieldSpec, index: int, text: int) -> Any:
    """A text of a record (with title), or its image as evaluation sees it: uint8 [size, size, 3].

    None for an optional image that the record lacks.
    """
    if spec.kind == "text":
        return source_texts(source, index, spec)[text]
    record = source[index]
    if spec.optional and is_absent(record.get(spec.column)):
        return None
    value = column_of(record, spec.column, source.name)
    return images.evaluation_view(value, spec.size, place=place_of(source, index))


def _text_count(source: Source, index: int, spec: FieldSpec) -> int:
    try:
        with record_at(place_of(source, index)):
            return len(source_texts(source, index, spec))
    except Damaged:
        return 0
