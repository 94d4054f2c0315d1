"""From records to batches. Everything follows from indices.

Position p of a run is a record: `Order.record(p)` is a pure function of (seed, p), batch k is made
of positions k * B .. (k + 1) * B - 1, and all draws of an example come from (seed, epoch, record).
So batches do not depend on processes, threads or worker processes, and a run resumes anywhere
without any state but its step. Grain shuffles, reads ahead and runs the worker processes.
"""

import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import grain
import numpy as np
from absl import flags

from big_retrieval.data import images
from big_retrieval.data.order import Order, example_rng
from big_retrieval.data.sources import Record, Source, as_image, as_texts, column_of, texts_of
from big_retrieval.data.tokenizer import Tokenizer
from big_retrieval.errors import UserError

Batch = dict[str, Any]


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


def train_batches(
    source: Source,
    *,
    fields: Mapping[str, FieldSpec],
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    start_batch: int,
    stop_batch: int,
    workers: int = 0,
    threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """This process's rows of the training batches start_batch .. stop_batch - 1.

    Of every record one text per text field is drawn; images get a random resized crop and are
    mirrored with probability `flip`, unless a drawn text has a word that this makes untrue.

    Args:
      source: the records.
      fields: field name -> how it is read.
      order: which record each position is.
      batch_size: B, of the global batch.
      rows: which of the B rows to load, [b].
      start_batch: the first batch; batch k begins at position k * B.
      stop_batch: behind the last batch.
      workers: processes that make batches; 0: threads of this one.
      threads: threads that make batches, in each process; 0: none, made when asked for.
      prefetch: batches made ahead, in each process.

    Yields:
      Field name -> arrays as `FieldSpec` says, `record` int64 [b] (record index) and `valid` bool
      [b], all True.

    Raises:
      UserError: a field does not fit the records. What the source raises comes through as it is.
    """
    make = partial(_train_batch, source, dict(fields), order, batch_size, np.asarray(rows))
    return _iterate(make, start_batch, stop_batch, workers, threads, prefetch)


def eval_batches(
    source: Source,
    fields: Mapping[str, FieldSpec],
    *,
    field: str,
    batch_size: int,
    rows: np.ndarray | None = None,
    workers: int = 0,
    threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """One field of all records, in order and as it is: every image, or every text, once.

    Images are resized and cropped centrally. The last batch is filled up with black images or empty
    texts, and `valid` False.

    Args:
      source: the records.
      fields: field name -> how it is read.
      field: the field's name.
      batch_size: B, of the global batch.
      rows: which of the B rows to load, [b]; None: all.
      workers: processes that make batches; 0: threads of this one.
      threads: threads that make batches, in each process.
      prefetch: batches made ahead, in each process.

    Yields:
      {field: arrays}, `record` int64 [b] (the record that the image or text belongs to, -1 where
      there is none) and `valid` bool [b].
    """
    spec = fields[field]
    rows = np.arange(batch_size) if rows is None else np.asarray(rows)
    items = eval_items(source, spec)  # [n, 2]
    make = partial(_eval_batch, source, field, spec, items, batch_size, rows)
    return _iterate(make, 0, -(-len(items) // batch_size), workers, threads, prefetch)


def try_record(source: Source, fields: Mapping[str, FieldSpec]) -> None:
    """Reads the first record as training would, so that what does not fit shows before it starts.

    Args:
      source: the records.
      fields: field name -> how it is read.

    Raises:
      UserError: a field does not fit the record, or the record cannot be read.
    """
    found = _example(source[0], fields, np.random.default_rng(0), source.name)
    for name, value in found.items():
        _stack(fields[name], [value])


def eval_items(source: Source, spec: FieldSpec) -> np.ndarray:
    """What an evaluation of a field goes through: int64 [n, 2] of record and text in the record."""
    if spec.kind == "image":
        records = np.arange(len(source), dtype=np.int64)
        return np.stack([records, np.zeros_like(records)], axis=1)  # [n, 2]
    counts = [len(texts_of(source, index, spec.column)) for index in range(len(source))]
    records = np.repeat(np.arange(len(source), dtype=np.int64), counts)  # [n]
    starts = np.repeat(np.cumsum(counts) - counts, counts)  # [n]
    return np.stack([records, np.arange(len(records)) - starts], axis=1)  # [n, 2]


class Timed:
    """An iterator that measures how long its user waits in next().

    Attributes:
      seconds: waited since the start.
    """

    def __init__(self, batches: Iterator[Batch]):
        self._batches = batches
        self._lap = 0.0
        self.seconds = 0.0

    def __iter__(self) -> "Timed":
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.perf_counter() - start

    def lap(self) -> float:
        """Seconds waited since the last call of `lap`."""
        waited, self._lap = self.seconds - self._lap, self.seconds
        return waited

    def close(self) -> None:
        """Stops reading ahead."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _iterate(
    make: Callable[[int], Batch], start: int, stop: int, workers: int, threads: int, prefetch: int
) -> Iterator[Batch]:
    """make(start), ..., make(stop - 1), in order and ahead of time."""
    if stop <= start:
        return
    ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(prefetch, threads, 1))
    batches = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(ahead)
    if workers:
        if not flags.FLAGS.is_parsed():  # grain hands the flags on to its workers
            flags.FLAGS.mark_as_parsed()
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=1),
            _end_with_parent,
        )
    iterator = iter(batches)
    try:
        yield from iterator
    finally:
        iterator.close()


def _end_with_parent(worker: int, workers: int) -> None:
    """Makes a worker process end when the run's process is gone, killed for example."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _train_batch(
    source: Source,
    fields: dict[str, FieldSpec],
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    number: int,
) -> Batch:
    """The rows [b] of batch `number`; see `train_batches`."""
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    records = np.empty(len(rows), np.int64)  # [b]
    for place, row in enumerate(rows.tolist()):
        epoch, index = order.record(int(number) * batch_size + row)
        records[place] = index
        rng = example_rng(order.seed, epoch, index)
        for name, value in _example(source[index], fields, rng, source.name).items():
            columns[name].append(value)
    batch: Batch = {name: _stack(fields[name], values) for name, values in columns.items()}
    return {**batch, "record": records, "valid": np.ones(len(rows), bool)}


def _example(
    record: Record, fields: Mapping[str, FieldSpec], rng: np.random.Generator, source: str
) -> dict[str, Any]:
    """Draws an example: field name -> str or uint8 [size, size, 3].

    Texts are drawn before images and both by name, so that the draws do not depend on how the
    fields are ordered.
    """
    chosen: dict[str, Any] = {}
    for name, spec in sorted(fields.items()):
        if spec.kind == "text":
            texts = as_texts(column_of(record, spec.column, source), spec.column, source)
            chosen[name] = texts[int(rng.integers(len(texts)))]
    said = tuple(chosen.values())
    for name, spec in sorted(fields.items()):
        if spec.kind == "image":
            image = as_image(column_of(record, spec.column, source), spec.column, source)
            image = images.random_resized_crop(
                image, spec.size, scale=spec.crop_scale, ratio=spec.crop_ratio, rng=rng
            )  # [S, S, 3]
            mirrored = rng.random() < spec.flip and not has_word(said, spec.flip_unsafe_words)
            chosen[name] = images.flip(image) if mirrored else image
    return chosen


def has_word(texts: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of the texts contains one of the words, as a word and in any case."""
    if not words:
        return False
    pattern = rf"\b(?:{'|'.join(map(re.escape, words))})\b"
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)


def _eval_batch(
    source: Source,
    field: str,
    spec: FieldSpec,
    items: np.ndarray,
    batch_size: int,
    rows: np.ndarray,
    number: int,
) -> Batch:
    """The rows [b] of evaluation batch `number`; see `eval_batches`."""
    places = int(number) * batch_size + rows  # [b]
    valid = places < len(items)  # [b]
    records = np.full(len(rows), -1, np.int64)  # [b]
    records[valid] = items[places[valid], 0]
    filler = "" if spec.kind == "text" else np.zeros((spec.size, spec.size, 3), np.uint8)
    values: list[Any] = [filler] * len(rows)
    for row in np.flatnonzero(valid).tolist():
        index, text = items[places[row]].tolist()
        if spec.kind == "text":
            values[row] = texts_of(source, index, spec.column)[text]
        else:
            value = column_of(source[index], spec.column, source.name)
            image = as_image(value, spec.column, source.name)
            values[row] = images.resize_center_crop(image, spec.size)  # [S, S, 3]
    return {field: _stack(spec, values), "record": records, "valid": valid}


def _stack(spec: FieldSpec, values: list[Any]) -> dict[str, np.ndarray]:
    """Images or texts as the arrays of a field, [n, ...]."""
    if spec.kind == "image":
        shape = (len(values), spec.size, spec.size, 3)
        return {"pixels": np.stack(values) if values else np.zeros(shape, np.uint8)}  # [n, S, S, 3]
    if spec.tokenizer is None:
        raise UserError(f"The text field of column {spec.column!r} has no tokenizer; give it one.")
    ids, mask = spec.tokenizer.encode(values, spec.length)  # [n, L]
    return {"ids": ids, "mask": mask}
