"""From records to batches. Everything follows from indices.

Position p of a run is a record: `Order.record(p)` is a pure function of (seed, p), batch k is made
of positions k * B .. (k + 1) * B - 1, and all draws of an example come from (seed, epoch, record).
So batches do not depend on processes, threads or worker processes, and a run resumes anywhere
without any state but its step. Grain shuffles, reads ahead and runs the worker processes.
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
from big_retrieval.data.batches import (
    NO_LABELS,
    Batch,
    FieldReader,
    RecordSpec,
    train_batch,
)
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
DEAD = "Worker process was terminated unexpectedly"  # what grain says
REPLACED = 3  # workers that may end in a row, without a batch in between


@dataclass(frozen=True)
class Reading:
    """What makes batches ahead of time, and who counts the damaged records in them.

    Attributes:
      threads: threads that make batches, in each process; 0: none, made when asked for.
      workers: processes that make batches; 0: threads of this one.
      prefetch: batches made ahead, in each process.
      damage: counts damaged records; None: the first one is an error.
    """

    threads: int = 2
    workers: int = 0
    prefetch: int = 4
    damage: Damage | None = None

    def batches(self, make: Callable[[int], Batch], start: int, stop: int) -> Iterator[Batch]:
        """make(start), ..., make(stop - 1), in order."""
        batches = _iterate(make, start, stop, self)
        return _unharmed(batches) if self.damage is None else self.damage.watch(batches)


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
    """This process's rows of the training batches start_batch .. stop_batch - 1.

    Of every record one text per text field is drawn; images get a random resized crop and are
    mirrored with probability `flip`, unless a drawn text has a word that this makes untrue. Another
    record, drawn from the damaged one's own random numbers, stands in for one that cannot be used.

    Args:
      batch_size: B, of the global batch.
      rows: which of the B rows to load, [b].
      start_batch: the first batch; batch k begins at position k * B.
      stop_batch: behind the last batch.
      labels: which columns say what a pair is and how much it counts.
      negatives: the further documents that every pair brings; None: none.
      contents: which ids rows get by what they hold; None: none.
      reading: by what, and who counts damaged records.

    Yields:
      Field name -> arrays as `FieldReader` says, `record` int64 [b] (record index) and `valid` bool
      [b], all True; with labels `query_id`, `document_id` int32 [b] and `weight` float32 [b];
      with negatives what `negatives.stack_negatives` says; with contents what `ContentIds.shapes`
      says.

    Raises:
      UserError: a field does not fit the records, or too many are damaged. What the source raises
        besides comes through as it is.
    """
    wanted = RecordSpec(dict(fields), labels, negatives, contents)
    make = partial(train_batch, source, wanted, order, batch_size, np.asarray(rows))
    return (reading or Reading()).batches(make, start_batch, stop_batch)


def eval_batches(
    source: RecordSource,
    fields: Mapping[str, FieldReader],
    *,
    field: str,
    batch_size: int,
    rows: np.ndarray | None = None,
    items: np.ndarray | None = None,
    reading: Reading | None = None,
) -> Iterator[Batch]:
    """One field of all records, in order and as it is: every image, or every text, once.

    Images are resized and cropped centrally. The last batch is filled up with black images or empty
    texts, and `valid` False. A damaged image is black too: it is there, and nothing finds it.

    Args:
      batch_size: B, of the global batch.
      rows: which of the B rows to load, [b]; None: all.
      items: from `eval_items`, if they are already computed.
      reading: by what, and who counts damaged records.

    Yields:
      {field: arrays}, `record` int64 [b] (the record that the image or text belongs to, -1 where
      there is none) and `valid` bool [b].
    """
    reader = fields[field]
    rows = np.arange(batch_size) if rows is None else np.asarray(rows)
    items = eval_items(source, reader) if items is None else items  # [n, 2]
    make = partial(eval_batch, source, field, reader, items, batch_size, rows)
    return (reading or Reading()).batches(make, 0, -(-len(items) // batch_size))


def _unharmed(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Raises at the first damaged record."""
    for batch in batches:
        for _, place, why in batch.get("damaged", ()):
            raise Damaged(place, why)
        yield batch


class Timed:
    """An iterator that measures how long its user waits in next()."""

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
    make: Callable[[int], Batch], start: int, stop: int, reading: Reading
) -> Iterator[Batch]:
    """make(start), ..., make(stop - 1), in order and ahead of time.

    A worker process that is killed is replaced: a batch is a function of its number, so that new
    workers go on with the first one that was not delivered, and the order stays as it was.
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
            except RuntimeError as problem:
                if DEAD not in str(problem):
                    raise
                deaths += 1
                _tell_of_death(str(problem), _last_words(folder), start, deaths)
            finally:
                iterator.close()
                if reading.workers:
                    # The last batch is in shared memory, and grain's frames hold it in a cycle with
                    # their StopIteration; at the end of the process it cannot be freed any more.
                    gc.collect()


def _last_words(folder: Path | None) -> str:
    """What the workers that are gone were reading, as a part of a sentence; "" if unknown."""
    alive = {str(child.pid) for child in multiprocessing.active_children()}
    try:
        known = sorted(folder.iterdir()) if folder is not None else []
    except OSError:  # whoever cleans up /tmp has removed the folder
        known = []
    gone = [path for path in known if path.name not in alive]
    places = [note.place for path in gone for note in notes.published(path)]
    return f" while it read {' or '.join(places[:4])}" if places else ""


def _tell_of_death(problem: str, place: str, batch: int, deaths: int) -> None:
    """Warns of a worker that ended."""
    found = re.search(r"exit code (-?\d+)", problem)
    code = int(found[1]) if found else 0
    with contextlib.suppress(ValueError):
        code = signal.Signals(-code).name if code < 0 else code
    what = f"a data worker was ended ({code}){place}"
    if deaths > REPLACED:
        raise UserError(
            f"{what}, and so were {deaths - 1} before it: the machine has too little memory for "
            "config.loader.workers and config.loader.prefetch, which can be lowered, or a decoder "
            "crashes on that record, which can be left out."
        )
    log.warning(f"{what}; new workers go on with batch {batch:,}")


def _ahead(
    make: Callable[[int], Batch],
    start: int,
    stop: int,
    reading: Reading,
    folder: Path | None,
) -> Any:
    """Grain's iterator over make(start), ..., make(stop - 1)."""
    threads = reading.threads
    # Grain uses no more threads than its buffer has places.
    size = max(reading.prefetch, threads, 1)
    ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=size)
    batches = grain.MapDataset.range(start, stop).map(make).to_iter_dataset(ahead)
    if reading.workers:
        if not flags.FLAGS.is_parsed():  # grain hands the flags on to its workers
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
    """Makes a worker process say what it reads, and end when the run's process is gone."""
    registry.make_importable(modules)  # of users' sources and fields
    screen.guard(log=True)  # a warning that nobody can read is no damage of a record
    messages.show(**shown)
    with contextlib.suppress(OSError):  # no room: then its notes stay unknown
        if folder is not None:
            notes.publish(folder / str(os.getpid()))
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
