"""One batch from indices: what a record becomes in training and in evaluation.

Everything here is a pure function of its arguments, so that any thread or process may make any
batch. A batch notes the damaged records that were met on its way under `damaged`; whoever iterates
over batches (pipeline.py) takes the note out and counts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data import images
from big_retrieval.data.damage import Lost, note, of_data, record_at
from big_retrieval.data.fields import FieldSpec, Text, lacks, record_texts, source_texts, stack
from big_retrieval.data.labels import Label, label_types, read_labels
from big_retrieval.data.negatives import Negatives, draw_negatives, stack_negatives
from big_retrieval.data.order import Order, stand_in
from big_retrieval.data.sources import (
    Record,
    Source,
    column_of,
    is_absent,
    place_of,
)
from big_retrieval.errors import Damaged, UserError

Batch = dict[str, Any]
NO_LABELS = PairLabels()
TRIES = 100  # records that may stand in for a damaged one, and that are tried at the start


@dataclass(frozen=True)
class Wanted:
    """What is read of every training record.

    Attributes:
      fields: field name -> how it is read.
      labels: which columns say what the pair is and how much it counts.
      negatives: the further documents that it brings; None: none.
    """

    fields: Mapping[str, FieldSpec]
    labels: PairLabels = NO_LABELS
    negatives: Negatives | None = None


@dataclass(frozen=True)
class Example:
    """One row of a training batch.

    Attributes:
      values: field name -> text (with title), or image uint8 [size, size, 3]; without what the
        record lacks.
      labels: what the record says of its pair.
      negatives: further documents, K at most.
    """

    values: Mapping[str, Any]
    labels: Mapping[str, Label]
    negatives: Sequence[Any] = ()


def try_record(
    source: Source,
    fields: Mapping[str, FieldSpec],
    labels: PairLabels = NO_LABELS,
    negatives: Negatives | None = None,
) -> None:
    """Reads a record as training would, so that what does not fit shows before it starts.

    Args:
      source: the records.
      fields: field name -> how it is read.
      labels: which columns say what the pair is.
      negatives: the further documents that it brings.

    Raises:
      UserError: a field does not fit the records, or none of the first ones can be read; a column
        of an optional field or of the negatives that all of the first ones lack.
    """
    first, read, wanted = None, False, Wanted(fields, labels, negatives)
    unseen = {f"config.fields.{name}.column": spec.column for name, spec in fields.items()}
    untitled = {f"config.fields.{n}.title": spec.title for n, spec in fields.items() if spec.title}
    if negatives is not None:
        unseen["config.negatives.column"] = negatives.column
    for index in range(min(TRIES, len(source))):
        try:
            with record_at(place_of(source, index)) as place:
                record = source[index]
                found = _drawn(record, place, source.name, wanted)
                _alone(wanted, found)
        except UserError as problem:
            first = first or problem
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
        mine = ", or find negatives with python -m big_retrieval.mine"
        raise UserError(
            f"{key} {unseen[key]!r} is in none of the first {tried} records of {source.name}; "
            f"name a column that they have{mine if 'negatives' in key else ''}."
        )
    if first is not None and not isinstance(first, Damaged):
        raise first  # a mistake in the configuration
    raise UserError(
        f"{source.name} has no usable record among its first {tried:,}; the first one: {first}"
        if tried > 1
        else str(first)
    )


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


def train_batch(
    source: Source, wanted: Wanted, order: Order, batch_size: int, rows: np.ndarray, number: int
) -> Batch:
    """The rows [b] of batch `number`; see `pipeline.train_batches`."""
    make = partial(_train_batch, source, wanted, order, batch_size, rows, number)
    try:
        return make(alone=False)
    except BaseException as problem:
        if not of_data(problem):
            raise
    # Texts are tokenised together, so that one that no tokenizer bears fails all. Which record it
    # is shows when each is tokenised alone.
    return make(alone=True)


def _train_batch(
    source: Source,
    wanted: Wanted,
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    number: int,
    *,
    alone: bool,
) -> Batch:
    examples: list[Example] = []
    records = np.empty(len(rows), np.int64)  # [b]
    lost: list[Lost] = []
    for place, row in enumerate(rows.tolist()):
        epoch, index = order.record(int(number) * batch_size + row)
        records[place], example, found = _usable(source, epoch, index, order.seed, wanted, alone)
        examples.append(example)
        lost += found
    batch: Batch = {
        name: stack(spec, [each.values.get(name) for each in examples])
        for name, spec in wanted.fields.items()
    }
    for name, dtype in label_types(wanted.labels).items():
        batch[name] = np.array([each.labels[name] for each in examples], dtype)
    if wanted.negatives is not None:
        batch |= stack_negatives(wanted.negatives, wanted.fields, [x.negatives for x in examples])
    batch |= {"damaged": lost} if lost else {}
    return {**batch, "record": records, "valid": np.ones(len(rows), bool)}


def _usable(
    source: Source, epoch: int, index: int, seed: int, wanted: Wanted, alone: bool
) -> tuple[int, Example, list[Lost]]:
    """(record, its example, damaged ones on the way): this record, or one that stands in for it."""
    lost: list[Lost] = []
    for candidate, rng in stand_in(source, seed, epoch, index, TRIES):
        try:
            with record_at(place_of(source, candidate)) as place:
                example = _drawn(source[candidate], place, source.name, wanted, rng)
                if alone:
                    _alone(wanted, example)
                return candidate, example, lost
        except Damaged as problem:
            lost.append(note(candidate, problem))
        except UserError as problem:  # a column that other records have; see `try_record`
            lost.append((candidate, place_of(source, candidate), str(problem).rstrip(".")))
    raise UserError(
        f"{source.name}: {TRIES} records in a row are damaged, the last one: {lost[-1][1]}, "
        f"{lost[-1][2]}; mend the data."
    )


def _alone(wanted: Wanted, example: Example) -> None:
    """Makes arrays of one example, to see whether that works."""
    for name, value in example.values.items():
        stack(wanted.fields[name], [value])
    if wanted.negatives is not None:
        stack_negatives(wanted.negatives, wanted.fields, [example.negatives])


def _drawn(
    record: Record, place: str, name: str, wanted: Wanted, rng: np.random.Generator | None = None
) -> Example:
    """Draws an example of a record.

    Texts are drawn before images and both by name, so that the draws do not depend on how the
    fields are ordered; negatives come last, so that no other draw depends on them.

    Args:
      record: what the source gives.
      place: where it stands, for messages.
      name: the source's.
      wanted: what is read.
      rng: the record's random numbers; None: any.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    here = {
        field: spec
        for field, spec in sorted(wanted.fields.items())
        if not (spec.optional and lacks(record, spec))
    }
    chosen: dict[str, Any] = {}
    drawn: dict[int, int] = {}  # texts of a field -> which one
    for field, spec in here.items():
        if spec.kind == "text":
            texts = record_texts(record, spec, name, place)
            number = int(rng.integers(len(texts)))
            chosen[field] = texts[number]
            drawn.setdefault(len(texts), number)
    known = read_labels(record, wanted.labels, place, drawn)
    said = [part for text in chosen.values() for part in _parts(text)]
    for field, spec in here.items():
        if spec.kind == "image":
            image = images.training_view(
                column_of(record, spec.column, name),
                spec.size,
                scale=spec.crop_scale,
                ratio=spec.crop_ratio,
                rng=rng,
                reduced=spec.reduced,
                decoder=spec.decoder,
                place=place,
            )  # [S, S, 3]
            mirrored = rng.random() < spec.flip and not has_word(said, spec.flip_unsafe_words)
            chosen[field] = images.flip(image) if mirrored else image
    return Example(chosen, known, draw_negatives(record, wanted.negatives, place, rng))


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def has_word(texts: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of the texts contains one of the words, as a word and in any case."""
    if not words:
        return False
    pattern = rf"\b(?:{'|'.join(map(re.escape, words))})\b"
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)


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
