"""One batch from indices: what a record becomes in training and in evaluation.

Everything here is a pure function of its arguments, so that any thread or process may make any
batch. A batch notes the damaged records that were met on its way under `damaged`; whoever iterates
over batches (pipeline.py) takes the note out and counts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from big_retrieval.config import PairLabels
from big_retrieval.data import images
from big_retrieval.data.damage import Lost, note
from big_retrieval.data.decoding import Decoder
from big_retrieval.data.labels import Label, label_types, read_labels
from big_retrieval.data.order import Order, stand_in
from big_retrieval.data.sources import (
    Record,
    Source,
    as_texts,
    column_of,
    is_absent,
    place_of,
    texts_of,
)
from big_retrieval.data.tokenizer import Tokenizer
from big_retrieval.errors import Damaged, UserError

Batch = dict[str, Any]
Example = tuple[dict[str, Any], dict[str, Label]]
NO_LABELS = PairLabels()
TRIES = 100  # records that may stand in for a damaged one, and that are tried at the start


@dataclass(frozen=True)
class FieldSpec:
    """How one field of a record becomes arrays.

    Attributes:
      kind: "image" gives {"pixels": uint8 [b, size, size, 3]}, "text" gives {"ids": int32
        [b, length], "mask": bool [b, length]}.
      column: the column that it is read from.
      size: side of the images in pixels.
      length: tokens of the texts.
      crop_scale: share of the area that training keeps; (1, 1): no crop.
      crop_ratio: width / height of the part that training keeps.
      flip: probability that training mirrors the image.
      flip_unsafe_words: words of a chosen text that forbid it.
      tokenizer: of a text field.
      decoder: what decodes and resizes training images.
      reduced: whether training decodes large JPEG files at a smaller scale.
      prefix: put before every text.
      optional: whether a record may lack the column; its arrays then have {"there": bool [b]}, too.
    """

    kind: Literal["image", "text"]
    column: str
    size: int = 0
    length: int = 0
    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    flip_unsafe_words: tuple[str, ...] = ("left", "right")
    tokenizer: Tokenizer | None = None
    decoder: Decoder = "pillow"
    reduced: bool = True
    prefix: str = ""
    optional: bool = False


def try_record(
    source: Source, fields: Mapping[str, FieldSpec], labels: PairLabels = NO_LABELS
) -> None:
    """Reads a record as training would, so that what does not fit shows before it starts.

    Args:
      source: the records.
      fields: field name -> how it is read.
      labels: which columns say what the pair is.

    Raises:
      UserError: a field does not fit the records, or none of the first ones can be read; an
        optional field that all of the first ones lack.
    """
    first, unseen, read = None, set(fields), False
    for index in range(min(TRIES, len(source))):
        try:
            found, _ = _example(source, index, fields, labels, np.random.default_rng(0))
        except Damaged as problem:
            first = first or problem
            continue
        for name, value in found.items():
            _stack(fields[name], [value])
        unseen -= set(found)
        read = True
        if not unseen:
            return
    if read:
        name = min(unseen)
        raise UserError(
            f"config.fields.{name}.column {fields[name].column!r} is in none of the first "
            f"{min(TRIES, len(source))} records of {source.name}; name a column that they have."
        )
    tried = min(TRIES, len(source))
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
    counts = [_text_count(source, index, spec.column) for index in range(len(source))]
    records = np.repeat(np.arange(len(source), dtype=np.int64), counts)  # [n]
    starts = np.repeat(np.cumsum(counts) - counts, counts)  # [n]
    return np.stack([records, np.arange(len(records)) - starts], axis=1)  # [n, 2]


def train_batch(
    source: Source,
    fields: dict[str, FieldSpec],
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    labels: PairLabels,
    number: int,
) -> Batch:
    """The rows [b] of batch `number`; see `pipeline.train_batches`."""
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in fields}
    numbers = {name: np.zeros(len(rows), dtype) for name, dtype in label_types(labels).items()}
    records = np.empty(len(rows), np.int64)  # [b]
    lost: list[Lost] = []
    for place, row in enumerate(rows.tolist()):
        epoch, index = order.record(int(number) * batch_size + row)
        index, (example, known), found = _usable(source, epoch, index, order.seed, fields, labels)
        records[place] = index
        lost += found
        for name, value in example.items():
            columns[name][place] = value
        for name, value in known.items():
            numbers[name][place] = value
    batch: Batch = {name: _stack(fields[name], values) for name, values in columns.items()}
    batch |= numbers | ({"damaged": lost} if lost else {})
    return {**batch, "record": records, "valid": np.ones(len(rows), bool)}


def _usable(
    source: Source,
    epoch: int,
    index: int,
    seed: int,
    fields: Mapping[str, FieldSpec],
    labels: PairLabels,
) -> tuple[int, Example, list[Lost]]:
    """(record, its example, damaged ones on the way): this record, or one that stands in for it."""
    lost: list[Lost] = []
    for candidate, rng in stand_in(source, seed, epoch, index, TRIES):
        try:
            return candidate, _example(source, candidate, fields, labels, rng), lost
        except Damaged as problem:
            lost.append(note(candidate, problem))
    raise UserError(
        f"{source.name}: {TRIES} records in a row are damaged, the last one: {lost[-1][1]}, "
        f"{lost[-1][2]}; mend the data."
    )


def _example(
    source: Source,
    index: int,
    fields: Mapping[str, FieldSpec],
    labels: PairLabels,
    rng: np.random.Generator,
) -> Example:
    """Draws an example: field name -> str or uint8 [size, size, 3]; and its labels.

    Texts are drawn before images and both by name, so that the draws do not depend on how the
    fields are ordered. Optional fields that the record lacks are left out.
    """
    record: Record = source[index]
    place = place_of(source, index)
    known = read_labels(record, labels, place)
    wanted = {
        name: spec
        for name, spec in sorted(fields.items())
        if not (spec.optional and is_absent(record.get(spec.column)))
    }
    chosen: dict[str, Any] = {}
    for name, spec in wanted.items():
        if spec.kind == "text":
            found = column_of(record, spec.column, source.name)
            texts = as_texts(found, spec.column, place)
            chosen[name] = texts[int(rng.integers(len(texts)))]
    said = tuple(chosen.values())
    for name, spec in wanted.items():
        if spec.kind == "image":
            image = images.training_view(
                column_of(record, spec.column, source.name),
                spec.size,
                scale=spec.crop_scale,
                ratio=spec.crop_ratio,
                rng=rng,
                reduced=spec.reduced,
                decoder=spec.decoder,
                place=place,
            )  # [S, S, 3]
            mirrored = rng.random() < spec.flip and not has_word(said, spec.flip_unsafe_words)
            chosen[name] = images.flip(image) if mirrored else image
    return chosen, known


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
            values[row] = _item(source, spec, index, text)
            valid[row] = values[row] is not None
        except Damaged as problem:
            lost.append(note(index, problem))
    batch: Batch = {field: _stack(spec, values), "record": records, "valid": valid}
    return batch | ({"damaged": lost} if lost else {})


def _item(source: Source, spec: FieldSpec, index: int, text: int) -> Any:
    """A text of a record, or its image as evaluation sees it: uint8 [size, size, 3].

    None for an optional image that the record lacks.
    """
    if spec.kind == "text":
        return texts_of(source, index, spec.column)[text]
    record = source[index]
    if spec.optional and is_absent(record.get(spec.column)):
        return None
    value = column_of(record, spec.column, source.name)
    return images.evaluation_view(value, spec.size, place=place_of(source, index))


def _text_count(source: Source, index: int, column: str) -> int:
    try:
        return len(texts_of(source, index, column))
    except Damaged:
        return 0


def _stack(spec: FieldSpec, values: list[Any]) -> dict[str, np.ndarray]:
    """Images or texts as a field's arrays, [n, ...]; None is a black image or an empty text."""
    there = {"there": np.array([x is not None for x in values], bool)} if spec.optional else {}
    if spec.kind == "image":
        pixels = np.zeros((len(values), spec.size, spec.size, 3), np.uint8)  # [n, S, S, 3]
        for row, value in enumerate(values):
            if value is not None:
                pixels[row] = value
        return {"pixels": pixels, **there}
    if spec.tokenizer is None:
        raise UserError(f"The text field of column {spec.column!r} has no tokenizer; give it one.")
    texts = ["" if x is None else spec.prefix + x for x in values]
    ids, mask = spec.tokenizer.encode(texts, spec.length)  # [n, L]
    return {"ids": ids, "mask": mask, **there}
