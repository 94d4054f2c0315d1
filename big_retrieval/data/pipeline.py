"""From records to batches, as pure functions of indices.

Batch k contains the positions k * B .. (k + 1) * B - 1 of a run. `Order.record(p)`, the record at
position p, is a pure function of (seed, p). The random numbers of an example depend only on (seed,
epoch, record). Therefore batches do not depend on the number of processes, threads or workers, and
a run can resume at any step: the step is its only state. Grain shuffles, prefetches and runs the
worker processes.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags

from big_retrieval.config import PairLabels, registry
from big_retrieval.data.batches import NO_LABELS, Batch, FieldReader, RecordSpec, train_batch
from big_retrieval.data.damage import Damage
from big_retrieval.data.eval_batches import eval_batch, eval_items
from big_retrieval.data.fields.contents import ContentIds
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.order import Order
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime import activity as notes
from big_retrieval.runtime import messages, screen

log = logging.getLogger(__name__)
DEAD = "Worker process was terminated unexpectedly"  # grain's message
REPLACED = 3  # maximum number of consecutive deaths of workers without a batch in between


@dataclass(frozen=True)
class Reading:
    """Settings for reading batches.

    Attributes:
      threads: threads per process that build batches; 0 builds a batch when it is requested.
      workers: processes that build batches; 0 for threads of this process.
      prefetch: batches to build ahead, per process.
      damage: counter of damaged records; None raises at the first one.
    """

    threads: int = 2
    workers: int = 0
    prefetch: int = 4
    damage: Damage | None = None

    def batches(self, make: Callable[[int], Batch], start: int, stop: int) -> Iterator[Batch]:
        """Yields make(start), ..., make(stop - 1) in order."""
        batches = _iterate(make, start, stop, self)
        return _raise_damaged(batches) if self.damage is None else self.damage.watch(batches)


def train_batches(
    source: RecordSource,
    *,
    fields: Mapping[str, FieldReader],
    order: Order,
    batch_size: int,
    rows: np.ndarray,
    start_batch: int,
    stop_batch: int,
    labels: PairLabels = NO_LABELS,
    negatives: NegativeSampling | None = None,
    contents: ContentIds | None = None,
    reading: Reading | None = None,
) -> Iterator[Batch]:
    """Yields rows of the training batches start_batch .. stop_batch - 1.

    Each text field gets one randomly drawn text of the record. Images get a random resized crop and
    are mirrored with probability `flip`, but not if a drawn text has a word such as "left"
    (`flip_unsafe_words`). Another record replaces a damaged record. The choice depends only on the
    seed, the epoch and the index of the damaged record.

    Args:
      batch_size: B of the global batch.
      rows: indices of the rows to load, among the B rows, [b].

    Yields:
      Field name -> arrays of `FieldReader.stack`, `record` int64 [b] (record index) and `valid`
      bool [b], all True; with labels `query_id`, `document_id` int32 [b] and `weight` float32 [b];
      with negatives the arrays of `stack_negatives`; with contents the arrays of
      `ContentIds.shapes`.

    Raises:
      UserError: a field does not fit the records, or too many records are damaged.
    """
    spec = RecordSpec(dict(fields), labels, negatives, contents)
    make = partial(train_batch, source, spec, order, batch_size, np.asarray(rows))
    return (reading or Reading()).batches(make, start_batch, stop_batch)


def eval_batches(
    source: RecordSource,
    fields: Mapping[str, FieldReader],
    *,
    field: str,
    batch_size: int,
    rows: np.ndarray | None = None,
    value_ids: np.ndarray | None = None,
    reading: Reading | None = None,
) -> Iterator[Batch]:
    """Yields every value of one field once, in order: every text, image or array of the records.

    Images are resized and cropped at the center. Empty values (black images, empty texts) with
    `valid` False fill up the last batch. A damaged image becomes a black image with `valid` True.

    Args:
      batch_size: B of the global batch.
      rows: indices of the rows to load, among the B rows, [b]; None for all.
      value_ids: result of `eval_items`, if already computed.

    Yields:
      {field: arrays}, `record` int64 [b] (record index, -1 for padding rows) and `valid` bool [b].
    """
    reader = fields[field]
    rows = np.arange(batch_size) if rows is None else np.asarray(rows)
    value_ids = eval_items(source, reader) if value_ids is None else value_ids  # [n, 2]
    make = partial(eval_batch, source, field, reader, value_ids, batch_size, rows)
    return (reading or Reading()).batches(make, 0, -(-len(value_ids) // batch_size))


def _raise_damaged(batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        for _, place, reason in batch.get("damaged", ()):
            raise Damaged(place, reason)
        yield batch


class Timed:
    """An iterator that measures how many seconds its caller waits in next()."""

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
        """Returns the seconds waited since the last call."""
        waited, self._lap = self.seconds - self._lap, self.seconds
        return waited

    def close(self) -> None:
        """Stops prefetching."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _iterate(
    make: Callable[[int], Batch], start: int, stop: int, reading: Reading
) -> Iterator[Batch]:
    """Yields make(start), ..., make(stop - 1) in order and ahead of time.

    New workers replace a killed one, and continue with the first batch that was not delivered.
    """
    deaths = 0
    while start < stop:
        with notes.workers() if reading.workers else contextlib.nullcontext() as folder:
            iterator = _ahead(make, start, stop, reading, folder)
            try:
                for batch in iterator:
                    yield batch
                    start, deaths = start + 1, 0
                return
            except RuntimeError as error:
                if DEAD not in str(error):
                    raise
                deaths += 1
                _report_death(str(error), _last_places(folder), start, deaths)
            finally:
                iterator.close()
                if reading.workers:
                    # A reference cycle (grain's frames and their StopIteration) keeps the last
                    # batch in shared memory. It must be freed before the process ends.
                    gc.collect()


def _last_places(folder: Path | None) -> str:
    """Returns " while it read ..." with the records that dead workers were reading, if known."""
    alive = {str(child.pid) for child in multiprocessing.active_children()}
    try:
        files = sorted(folder.iterdir()) if folder is not None else []
    except OSError:  # a clean-up of /tmp has removed the folder
        files = []
    dead = [path for path in files if path.name not in alive]
    places = [note.place for path in dead for note in notes.read_notes(path)]
    return f" while it read {' or '.join(places[:4])}" if places else ""


def _report_death(reason: str, place: str, batch: int, deaths: int) -> None:
    match = re.search(r"exit code (-?\d+)", reason)
    code = int(match[1]) if match else 0
    with contextlib.suppress(ValueError):
        code = signal.Signals(-code).name if code < 0 else code
    message = f"a data worker died ({code}){place}"
    if deaths > REPLACED:
        raise UserError(
            f"{message}, and so did {deaths - 1} before it. If memory is short, lower "
            "config.loader.workers and config.loader.prefetch. If a decoder crashes on that "
            "record, remove the record."
        )
    log.warning(f"{message}; new workers continue with batch {batch:,}")


def _ahead(
    make: Callable[[int], Batch],
    start: int,
    stop: int,
    reading: Reading,
    folder: Path | None,
) -> Any:
    """Returns grain's iterator over make(start), ..., make(stop - 1)."""
    threads = reading.threads
    size = max(reading.prefetch, threads, 1)  # grain uses at most this many threads
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=size)
    batches = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(options)
    if reading.workers:
        if not flags.FLAGS.is_parsed():  # grain passes the flags to its workers
            flags.FLAGS.mark_as_parsed()
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=reading.workers, per_worker_buffer_size=1),
            partial(_begin_worker, folder, registry.modules(), messages.settings()),
        )
    return iter(batches)


def _begin_worker(
    folder: Path | None,
    modules: Mapping[str, str],
    shown: Mapping[str, Any],
    worker: int,
    workers: int,
) -> None:
    """Sets up a worker: it publishes which record it reads, and exits when its parent ends."""
    registry.make_importable(modules)  # modules of custom sources and fields
    screen.guard(log=True)  # else a warning that cannot be printed would damage a record
    messages.show(**shown)
    with contextlib.suppress(OSError):  # on a full disk, it publishes nothing
        if folder is not None:
            notes.publish(folder / str(os.getpid()))
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
