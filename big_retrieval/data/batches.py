"""Training batches from record indices; eval_batches.py builds the batches of evaluations.

All functions are pure: any thread or process can compute any batch. A batch lists skipped records
under `damaged`, which pipeline.py removes and counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data.damage import DamageNote, is_data_error, note, record_at
from big_retrieval.data.fields.contents import ContentIds, row_ids
from big_retrieval.data.fields.labels import Label, label_types, read_labels
from big_retrieval.data.fields.reader import Drawing, FieldReader, stack
from big_retrieval.data.negatives import NegativeSampling, draw_negatives, stack_negatives
from big_retrieval.data.order import Order, replacements
from big_retrieval.data.sources import Record, RecordSource, is_absent
from big_retrieval.errors import Damaged, UserError

Batch = dict[str, Any]
NO_LABELS = PairLabels()
TRIES = 100  # maximum number of records to try, at the start and in place of a damaged record


@dataclass(frozen=True)
class RecordSpec:
    """Fields and settings for reading a training record."""

    fields: Mapping[str, FieldReader]
    labels: PairLabels = NO_LABELS
    negatives: NegativeSampling | None = None
    contents: ContentIds | None = None


@dataclass(frozen=True)
class TrainingExample:
    """One row of a training batch: results of `FieldReader.draw`, labels, and ids by content."""

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
    """Reads the first records as training does, so that errors appear before the first step.

    Raises:
      UserError: a field does not fit the records, none of the first records can be read, all of
        them lack a column, or a reader's arrays differ from `Field.shapes`.
    """
    first, mistake, is_read = None, None, False
    spec = RecordSpec(fields, labels, negatives)
    missing: dict[str, str] = {}  # config key -> column that no record had so far
    for name, reader in fields.items():
        reader.check_files(f"config.fields.{name}", source)
        columns = reader.field.columns().items()
        missing |= {f"config.fields.{name}.{key}": column for key, column in columns}
    if negatives is not None:
        missing["config.negatives.column"] = negatives.column
    tries = min(TRIES, len(source))
    for index in range(tries):
        try:
            with record_at(source.place(index)) as place:
                record = source[index]
                example = _draw_example(record, index, place, source.name, spec)
                _stack_one(spec, example)
            if not is_read:
                _check_shapes(spec, example)
        except Damaged as error:
            first = first or error
            continue
        except UserError as error:  # in the config, if all records raise it
            mistake = mistake or error
            continue
        is_read = True
        missing = {key: x for key, x in missing.items() if not _has_column(record, key, x)}
        if not missing:
            return
    if is_read:
        key = min(missing)
        hint = ", or find negatives with big-retrieval mine" if "negatives" in key else ""
        raise UserError(
            f"{key} {missing[key]!r} is in none of the first {tries} records of {source.name}; "
            f"name a column that they have{hint}."
        )
    if mistake is not None:
        raise mistake
    raise UserError(
        f"{source.name} has no usable record among its first {tries:,}; the first one: {first}"
        if tries > 1
        else str(first)
    )


def _has_column(record: Record, key: str, column: str) -> bool:
    """Returns True if a record has a column; titles and boxes may be empty, other values not."""
    return column in record and not (key.endswith(".column") and is_absent(record[column]))


def train_batch(
    source: RecordSource,
    spec: RecordSpec,
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    batch_index: int,
) -> Batch:
    """Returns the rows [b] of one batch; see `pipeline.train_batches`."""
    make = partial(_train_batch, source, spec, order, batch_size, rows, batch_index)
    try:
        return make(stack_each=False)
    except BaseException as error:
        if not is_data_error(error):
            raise
    # All texts are tokenized together. Tokenizing them one by one shows which record fails.
    return make(stack_each=True)


def _train_batch(
    source: RecordSource,
    spec: RecordSpec,
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    batch_index: int,
    *,
    stack_each: bool,
) -> Batch:
    examples: list[TrainingExample] = []
    records = np.empty(len(rows), np.int64)  # [b]
    damaged: list[DamageNote] = []
    for position, row in enumerate(rows.tolist()):
        epoch, index = order.record(int(batch_index) * batch_size + row)
        records[position], example, skipped = _usable(
            source, epoch, index, order.seed, spec, stack_each
        )
        examples.append(example)
        damaged += skipped
    batch: Batch = {
        name: stack(reader, [example.values.get(name) for example in examples])
        for name, reader in spec.fields.items()
    }
    for name, dtype in label_types(spec.labels).items():
        batch[name] = np.array([example.labels[name] for example in examples], dtype)
    for name in () if spec.contents is None else spec.contents.shapes():
        batch[name] = np.stack([example.ids[name] for example in examples])
    if spec.negatives is not None:
        batch |= stack_negatives(spec.negatives, spec.fields, [x.negatives for x in examples])
    batch |= {"damaged": damaged} if damaged else {}
    return {**batch, "record": records, "valid": np.ones(len(rows), bool)}


def _usable(
    source: RecordSource, epoch: int, index: int, seed: int, spec: RecordSpec, stack_each: bool
) -> tuple[int, TrainingExample, list[DamageNote]]:
    """Returns (record, example, damaged records), of the record or its first usable replacement."""
    damaged: list[DamageNote] = []
    for candidate, rng in replacements(source, seed, epoch, index, TRIES):
        try:
            with record_at(source.place(candidate)) as place:
                record = source[candidate]
                example = _draw_example(record, candidate, place, source.name, spec, rng)
                if stack_each:
                    _stack_one(spec, example)
                return candidate, example, damaged
        except Damaged as error:
            damaged.append(note(candidate, error))
        except UserError as error:  # a column that other records have; see `try_record`
            damaged.append((candidate, source.place(candidate), str(error).rstrip(".")))
    raise UserError(
        f"{source.name}: {TRIES} records in a row are damaged, the last one: {damaged[-1][1]}, "
        f"{damaged[-1][2]}. Repair the data."
    )


def _stack_one(spec: RecordSpec, example: TrainingExample) -> None:
    """Stacks one example, which raises if its values cannot be stacked."""
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
                f"but {type(reader.field).__name__}.shapes gives {declared}. Make both equal."
            )


def _draw_example(
    record: Record,
    index: int,
    place: str,
    name: str,
    spec: RecordSpec,
    rng: np.random.Generator | None = None,
) -> TrainingExample:
    """Draws an example of a record; without `rng`, with the seed 0.

    Draws do not depend on the order of fields: texts come first, then the other fields, both by
    name. Negatives come last, so that no other draw depends on them.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    present = {
        field: reader
        for field, reader in sorted(spec.fields.items())
        if not (reader.field.optional and reader.lacks(record))
    }
    # `same_input_as` may name a field that is not read (in an evaluation); then read this field.
    shared = {
        field: owner for field, x in present.items() if (owner := x.field.same_input_as) in present
    }
    readers = {field: reader for field, reader in present.items() if field not in shared}
    drawing = Drawing(name, place, index, rng)
    first = {field: x for field, x in readers.items() if x.field.draws_first}
    values = {field: x.draw(field, record, drawing) for field, x in first.items()}
    drawing.texts |= {
        field: drawing.texts[owner] for field, owner in shared.items() if owner in drawing.texts
    }
    labels = read_labels(record, spec.labels, place, drawing.texts)
    later = {field: x for field, x in readers.items() if field not in first}
    values |= {field: x.draw(field, record, drawing) for field, x in later.items()}
    values |= {field: values[owner] for field, owner in shared.items()}
    negatives = draw_negatives(record, spec.negatives, place, rng)
    ids = {}
    if spec.contents is not None:
        ids = row_ids(spec.contents, spec.fields, record, drawing, negatives)
    return TrainingExample(values, labels, negatives, ids)
