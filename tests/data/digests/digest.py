"""SHA-256 of rows and batches: equal only for equal types and values."""

import datetime
import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config
from big_retrieval.data.build import (
    make_labels,
    make_negatives,
    make_readers,
    make_tokenizer,
)
from big_retrieval.data.damage import Damage
from big_retrieval.data.duplicates import content_ids
from big_retrieval.data.images.decoding import Encoded, OneOf
from big_retrieval.data.pipeline import Reading, eval_batches, train_batches
from big_retrieval.errors import Damaged, UserError

BATCHES = 3


def without_folder(text: str) -> str:
    """Replaces the working directory, whose name differs between runs."""
    return text.replace(str(Path.cwd()), "FOLDER")


def message_of(problem: Exception) -> str:
    """Returns an error message without folders and without the words of the CSV library."""
    return re.sub(r"(readable CSV file) \(.*", r"\1", without_folder(str(problem)), flags=re.DOTALL)


class Digest:
    """SHA-256 of values."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def __str__(self) -> str:
        return self._sha.hexdigest()

    def add(self, value: Any) -> None:
        """Adds a value: its type, its size and its content, recursively.

        Raises:
          TypeError: values of this type have no fixed content.
        """
        kind, inner, data = type(value).__name__, [], b""
        if isinstance(value, Encoded):
            data = value.data
        elif isinstance(value, OneOf):
            inner = [value.load(number) for number in range(value.count)]
        elif isinstance(value, str):
            data = without_folder(value).encode("utf-8", "surrogatepass")
        elif isinstance(value, bytes):
            data = value
        elif isinstance(value, list | tuple):
            inner = list(value)
        elif isinstance(value, Mapping):
            kind, inner = "dict", [part for pair in value.items() for part in pair]
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            kind, data = f"{kind} {little.dtype.str} {array.shape}", little.tobytes()
        elif value is None or isinstance(value, bool | int | float | datetime.date):
            data = repr(value).encode()
        else:
            raise TypeError(f"No digest of {kind}: {value!r:.80}")
        self._sha.update(f"{kind} {len(data)} {len(inner)}:".encode() + data)
        for each in inner:
            self.add(each)


def digest_rows(source: Any, columns: Collection[str] | None = None) -> str:
    """Returns the number of records, the damaged ones with a reason, and the digest of all.

    Args:
      source: records by index.
      columns: columns to read; None for all, and for captions and classes of the source.
    """
    digest, reasons = Digest(), []
    if columns is None and hasattr(source, "classes"):
        digest.add([dict(sorted(source.classes.items())), list(source.captions())])
    for index in range(len(source)):
        try:
            row = source[index]
        except Damaged as problem:
            reasons.append(without_folder(problem.why))
            digest.add("damaged")
            continue
        digest.add({x: row[x] for x in sorted(row) if columns is None or x in columns})
    damaged = f", {len(reasons)} damaged (the first: {reasons[0]})" if reasons else ""
    return f"{len(source)} rows{damaged} {digest}"


def digest_batches(config: Config, source: Any, held_out: Any) -> dict[str, str]:
    """Returns the digests of the first batches: "train", and "eval FIELD" for each field.

    Args:
      config: fields, labels, negatives and batch size.
      source: training records, from which the tokenizer is learned.
      held_out: records of the evaluation.
    """
    tokenizer = make_tokenizer(config, source)
    readers = make_readers(config, tokenizer, source)
    batches = train_batches(
        source,
        fields=readers,
        order=source.order(config.seed),
        batch_size=config.batch_size,
        rows=np.arange(config.batch_size),
        start_batch=0,
        stop_batch=BATCHES,
        labels=make_labels(config),
        negatives=make_negatives(config),
        contents=content_ids(config, source, readers),
        reading=_reading(),
    )
    digests = {"train": _of_batches(batches)}
    for name in sorted(readers):
        side = "queries" if config.fields[name].side == "query" else "documents"
        records = getattr(held_out, side, held_out)  # of judged pairs
        read = eval_batches(
            records, readers, field=name, batch_size=config.batch_size, reading=_reading()
        )
        digests[f"eval {name}"] = _of_batches(itertools.islice(read, BATCHES))
    return digests


def _reading() -> Reading:
    return Reading(threads=0, damage=Damage(None, 1.0))


def _of_batches(batches: Iterable[Mapping[str, Any]]) -> str:
    digest, count = Digest(), 0
    try:
        for batch in batches:
            digest.add(_sorted(batch))
            count += 1
    except UserError as problem:
        return message_of(problem)
    return f"{count} batches {digest}"


def _sorted(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a batch by name, in alphabetical order."""
    return {
        name: _sorted(batch[name]) if isinstance(batch[name], Mapping) else batch[name]
        for name in sorted(batch)
    }
