"""Training batches from record indices.

All functions are pure, so that any thread or process can compute any batch. A batch lists the
damaged records that were skipped under `damaged`; pipeline.py removes and counts them. Batches of
evaluations are in eval_batches.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data.damage import DamageNote, note, of_data, record_at
from big_retrieval.data.fields.contents import ContentIds, row_ids
from big_retrieval.data.fields.labels import Label, label_types, read_labels
from big_retrieval.data.fields.reader import Drawing, FieldReader, stack
from big_retrieval.data.negatives import NegativeSampling, draw_negatives, stack_negatives
from big_retrieval.data.order import Order, stand_in
from big_retrieval.data.sources import Record, RecordSource, is_absent
from big_retrieval.errors import Damaged, UserError

Batch = dict[str, Any]
NO_LABELS = PairLabels()
TRIES = 100  # records that may replace a damaged one, and that are tried at the start


@dataclass(frozen=True)
class RecordSpec:
    """Settings of reading a training record."""

    fields: Mapping[str, FieldReader]
    labels: PairLabels = NO_LABELS
    negatives: NegativeSampling | None = None
    contents: ContentIds | None = None


@dataclass(frozen=True)
class TrainingExample:
    """One row of a training batch.

    Attributes:
      values: field name -> result of `FieldReader.draw`, without fields that the record lacks.
      ids: ids by content, int32 arrays.
    """

    values: Mapping[str, Any]
    labels: Mapping[str, Label]
    negatives: Sequence[Any] = ()
    ids: Mapping[str, np.ndarray] = field(default_factory=dict)


def try_record(
    source: RecordSource,
    fields: Mapping[str, FieldReader],
    labels: PairLabels = NO_LABELS,
    negatives: NegativeSampling | None = None,
) -> None:
    """Reads a record as in training, so that mistakes show before the first step.

    Raises:
      UserError: a field does not fit the records; none of the first records can be read, or all of
        them lack a column of an optional field or of the negatives; a reader's arrays differ from
        `Field.shapes`.
    """
    first, mistake, read, spec = None, None, False, RecordSpec(fields, labels, negatives)
    unseen: dict[str, str] = {}
    untitled: dict[str, str] = {}  # and other columns that may be empty in all of these records
    for name, reader in fields.items():
        reader.check_files(f"config.fields.{name}", source)
        for key, column in reader.field.columns().items():
            (unseen if key == "column" else untitled)[f"config.fields.{name}.{key}"] = column
    if negatives is not None:
        unseen["config.negatives.column"] = negatives.column
    for index in range(min(TRIES, len(source))):
        try:
            with record_at(source.place(index)) as place:
                record = source[index]
                found = _drawn(record, index, place, source.name, spec)
                _alone(spec, found)
            if not read:
                _check_shapes(spec, found)
        except Damaged as problem:
            first = first or problem
            continue
        except UserError as problem:  # of the configuration, if it is the same for all records
            mistake = mistake or problem
            continue
        untitled = {key: title for key, title in untitled.items() if title not in record}
        unseen = {key: name for key, name in unseen.items() if is_absent(record.get(name))}
        read = True
        if not unseen and not untitled:
            return
    tried = min(TRIES, len(source))
    if read:
        unseen |= untitled
        key = min(unseen)
        mine = ", or find negatives with big-retrieval mine"
        raise UserError(
            f"{key} {unseen[key]!r} is in none of the first {tried} records of {source.name}; "
            f"name a column that they have{mine if 'negatives' in key else ''}."
        )
    if mistake is not None:
        raise mistake
    raise UserError(
        f"{source.name} has no usable record among its first {tried:,}; the first one: {first}"
        if tried > 1
        else str(first)
    )


def train_batch(
    source: RecordSource,
    spec: RecordSpec,
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    number: int,
) -> Batch:
    """Returns the rows [b] of batch `number`; see `pipeline.train_batches`."""
    make = partial(_train_batch, source, spec, order, batch_size, rows, number)
    try:
        return make(alone=False)
    except BaseException as problem:
        if not of_data(problem):
            raise
    # All texts are tokenised together. Tokenising them one by one shows which record fails.
    return make(alone=True)


def _train_batch(
    source: RecordSource,
    spec: RecordSpec,
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    number: int,
    *,
    alone: bool,
) -> Batch:
    examples: list[TrainingExample] = []
    records = np.empty(len(rows), np.int64)  # [b]
    damaged: list[DamageNote] = []
    for place, row in enumerate(rows.tolist()):
        epoch, index = order.record(int(number) * batch_size + row)
        records[place], example, found = _usable(source, epoch, index, order.seed, spec, alone)
        examples.append(example)
        damaged += found
    batch: Batch = {
        name: stack(reader, [each.values.get(name) for each in examples])
        for name, reader in spec.fields.items()
    }
    for name, dtype in label_types(spec.labels).items():
        batch[name] = np.array([each.labels[name] for each in examples], dtype)
    for name in () if spec.contents is None else spec.contents.shapes():
        batch[name] = np.stack([each.ids[name] for each in examples])
    if spec.negatives is not None:
        batch |= stack_negatives(spec.negatives, spec.fields, [x.negatives for x in examples])
    batch |= {"damaged": damaged} if damaged else {}
    return {**batch, "record": records, "valid": np.ones(len(rows), bool)}


def _usable(
    source: RecordSource, epoch: int, index: int, seed: int, spec: RecordSpec, alone: bool
) -> tuple[int, TrainingExample, list[DamageNote]]:
    """Returns (record, example, damaged records): the record, or one that replaces it."""
    damaged: list[DamageNote] = []
    for candidate, rng in stand_in(source, seed, epoch, index, TRIES):
        try:
            with record_at(source.place(candidate)) as place:
                record = source[candidate]
                example = _drawn(record, candidate, place, source.name, spec, rng)
                if alone:
                    _alone(spec, example)
                return candidate, example, damaged
        except Damaged as problem:
            damaged.append(note(candidate, problem))
        except UserError as problem:  # a column that other records have; see `try_record`
            damaged.append((candidate, source.place(candidate), str(problem).rstrip(".")))
    raise UserError(
        f"{source.name}: {TRIES} records in a row are damaged, the last problem: {damaged[-1][1]}, "
        f"{damaged[-1][2]}; mend the data."
    )


def _alone(spec: RecordSpec, example: TrainingExample) -> None:
    """Stacks one example, to see if that works."""
    for name, value in example.values.items():
        stack(spec.fields[name], [value])
    if spec.negatives is not None:
        stack_negatives(spec.negatives, spec.fields, [example.negatives])


def _check_shapes(spec: RecordSpec, example: TrainingExample) -> None:
    """Raises a UserError if a reader's arrays differ from the shapes of its field."""
    for name, value in example.values.items():
        reader = spec.fields[name]
        shapes, arrays = reader.field.shapes(), reader.stack([value])
        declared = {key: f"{dtype} {list(shape)}" for key, (shape, dtype) in shapes.items()}
        actual = {key: f"{x.dtype} {list(x.shape[1:])}" for key, x in arrays.items()}
        if declared != actual:
            raise UserError(
                f"config.fields.{name}: for one row, {type(reader).__name__}.stack gives {actual}, "
                f"but {type(reader.field).__name__}.shapes says {declared}; let both be the same."
            )


def _drawn(
    record: Record,
    index: int,
    place: str,
    name: str,
    spec: RecordSpec,
    rng: np.random.Generator | None = None,
) -> TrainingExample:
    """Draws an example of a record.

    Texts are drawn first and each group by name, so that draws do not depend on the order of
    fields; negatives are drawn last, so that no other draw depends on them.

    Args:
      rng: random numbers of the record; None for any.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    here = {
        field: reader
        for field, reader in sorted(spec.fields.items())
        if not (reader.field.optional and reader.lacks(record))
    }
    # A field whose `same_input_as` is not read, as in an evaluation, is read by itself.
    shared = {field: of for field, x in here.items() if (of := x.field.same_input_as) in here}
    here = {field: reader for field, reader in here.items() if field not in shared}
    drawing = Drawing(name, place, index, rng)
    first = {field: x for field, x in here.items() if x.field.draws_first}
    values = {field: x.draw(field, record, drawing) for field, x in first.items()}
    drawing.texts |= {x: drawing.texts[of] for x, of in shared.items() if of in drawing.texts}
    labels = read_labels(record, spec.labels, place, drawing.texts)
    later = {field: x for field, x in here.items() if field not in first}
    values |= {field: x.draw(field, record, drawing) for field, x in later.items()}
    values |= {field: values[of] for field, of in shared.items()}
    negatives = draw_negatives(record, spec.negatives, place, rng)
    ids = {}
    if spec.contents is not None:
        ids = row_ids(spec.contents, spec.fields, record, drawing, negatives)
    return TrainingExample(values, labels, negatives, ids)
