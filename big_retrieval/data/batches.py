"""One training batch from indices: what a record becomes in training.

Everything here is a pure function of its arguments, so that any thread or process may make any
batch. A batch notes the damaged records that were met on its way under `damaged`; whoever iterates
over batches (pipeline.py) takes the note out and counts. Batches of evaluations are made in
eval_batches.py.
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
from big_retrieval.data.sources import Record, RecordSource, is_absent, place_of
from big_retrieval.errors import Damaged, UserError

Batch = dict[str, Any]
NO_LABELS = PairLabels()
TRIES = 100  # records that may stand in for a damaged one, and that are tried at the start


@dataclass(frozen=True)
class RecordSpec:
    """What is read of every training record.

    Attributes:
      fields: field name -> how it is read.
      labels: which columns say what the pair is and how much it counts.
      negatives: the further documents that it brings; None: none.
      contents: which ids rows get by what they hold; None: none.
    """

    fields: Mapping[str, FieldReader]
    labels: PairLabels = NO_LABELS
    negatives: NegativeSampling | None = None
    contents: ContentIds | None = None


@dataclass(frozen=True)
class TrainingExample:
    """One row of a training batch.

    Attributes:
      values: field name -> what `FieldReader.draw` returned; without what the record lacks.
      labels: what the record says of its pair.
      negatives: further documents, K at most.
      ids: by what the record holds, int32 arrays.
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
    """Reads a record as training would, so that what does not fit shows before it starts.

    Args:
      source: the records.
      fields: field name -> how it is read.
      labels: which columns say what the pair is.
      negatives: the further documents that it brings.

    Raises:
      UserError: a field does not fit the records, or none of the first ones can be read; a column
        of an optional field or of the negatives that all of the first ones lack; a reader's arrays
        are not those that its field says (`Field.shapes`).
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
            with record_at(place_of(source, index)) as place:
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
    """The rows [b] of batch `number`; see `pipeline.train_batches`."""
    make = partial(_train_batch, source, spec, order, batch_size, rows, number)
    try:
        return make(alone=False)
    except BaseException as problem:
        if not of_data(problem):
            raise
    # Texts are tokenised together, so that one that no tokenizer bears fails all. Which record it
    # is shows when each is tokenised alone.
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
    """(record, its example, damaged ones on the way): this record, or one that stands in for it."""
    damaged: list[DamageNote] = []
    for candidate, rng in stand_in(source, seed, epoch, index, TRIES):
        try:
            with record_at(place_of(source, candidate)) as place:
                record = source[candidate]
                example = _drawn(record, candidate, place, source.name, spec, rng)
                if alone:
                    _alone(spec, example)
                return candidate, example, damaged
        except Damaged as problem:
            damaged.append(note(candidate, problem))
        except UserError as problem:  # a column that other records have; see `try_record`
            damaged.append((candidate, place_of(source, candidate), str(problem).rstrip(".")))
    raise UserError(
        f"{source.name}: {TRIES} records in a row are damaged, the last problem: {damaged[-1][1]}, "
        f"{damaged[-1][2]}; mend the data."
    )


def _alone(spec: RecordSpec, example: TrainingExample) -> None:
    """Makes arrays of one example, to see whether that works."""
    for name, value in example.values.items():
        stack(spec.fields[name], [value])
    if spec.negatives is not None:
        stack_negatives(spec.negatives, spec.fields, [example.negatives])


def _check_shapes(spec: RecordSpec, example: TrainingExample) -> None:
    """Raises a UserError where a reader's arrays are others than those that its field says."""
    for name, value in example.values.items():
        reader = spec.fields[name]
        shapes, arrays = reader.field.shapes(), reader.stack([value])
        said = {key: f"{of} {list(shape)}" for key, (shape, of) in shapes.items()}
        given = {key: f"{x.dtype} {list(x.shape[1:])}" for key, x in arrays.items()}
        if said != given:
            raise UserError(
                f"config.fields.{name}: for one row, {type(reader).__name__}.stack gives {given}, "
                f"but {type(reader.field).__name__}.shapes says {said}; let both be the same."
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

    Texts are drawn before all else and each group by name, so that the draws do not depend on how
    the fields are ordered; negatives come last, so that no other draw depends on them.

    Args:
      record: what the source gives.
      index: its number.
      place: where it stands, for messages.
      name: the source's.
      spec: what is read.
      rng: the record's random numbers; None: any.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    here = {
        field: reader
        for field, reader in sorted(spec.fields.items())
        if not (reader.field.optional and reader.lacks(record))
    }
    # Where the other field is not read, as in an evaluation, this one is read by itself.
    shared = {field: of for field, x in here.items() if (of := x.field.same_input_as) in here}
    here = {field: reader for field, reader in here.items() if field not in shared}
    drawing = Drawing(name, place, index, rng)
    first = {field: x.draw(field, record, drawing) for field, x in here.items() if _first(x)}
    drawing.texts |= {x: drawing.texts[of] for x, of in shared.items() if of in drawing.texts}
    known = read_labels(record, spec.labels, place, drawing.texts)
    rest = {field: x.draw(field, record, drawing) for field, x in here.items() if not _first(x)}
    values = {**first, **rest}
    values |= {field: values[of] for field, of in shared.items()}
    negatives = draw_negatives(record, spec.negatives, place, rng)
    ids = {}
    if spec.contents is not None:
        ids = row_ids(spec.contents, spec.fields, record, drawing, negatives)
    return TrainingExample(values, known, negatives, ids)


def _first(reader: FieldReader) -> bool:
    return reader.field.draws_first
