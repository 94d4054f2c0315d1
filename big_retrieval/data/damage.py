"""Counts and lists the damaged records of a run; raises an error if there are too many."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime.activity import reading
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)

NAMED = 3  # skipped records that a command names
LEAST_READS = 1000  # minimum denominator of the share: 1 of the first 10 reads is not 10%
DamageNote = tuple[int, str, str]  # record index, location, reason


class record_at(reading):
    """A context that reads one record: any exception in it becomes the `Damaged` of this record.

    Data are untrusted, and libraries that decode them raise any type of exception. This includes
    `MemoryError`: a file can request more memory than any machine has. A bug is not hidden, because
    the reason keeps the type of the exception. A run does not start if none of the first records
    can be used (`batches.try_record`), and `Damage` ends a run with too many damaged records.
    Interrupts, exits and `UserError`s pass through.
    """

    __slots__ = ()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        error: BaseException | None = exc[1]
        if isinstance(error, Damaged) and not error.place:
            raise Damaged(self._place, error.why.rstrip(".")) from error
        if error is not None and is_data_error(error):
            reason = f"it cannot be used ({format_exception(error)})"
            raise Damaged(self._place, reason) from error


def is_data_error(error: BaseException) -> bool:
    """Returns True unless an exception is a `UserError`, an interrupt or an exit.

    Also True for a panic of Rust code, such as a tokenizer's, which is not an `Exception`.
    """
    if isinstance(error, UserError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def format_exception(error: BaseException) -> str:
    """Returns the type and the first line of an exception."""
    cls, lines = type(error), str(error).strip().splitlines()
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
    return f"{name}: {lines[0].rstrip('.')[:200]}" if lines else name


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception, or its type if it has no text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")[:200]


class Damage:
    """Damaged records that a process read.

    Args:
      file: file for a JSON object per damaged record: record, place, why. None for no file.
      limit: maximum share of damaged records among the records read.
    """

    def __init__(self, file: Path | None, limit: float):
        self._file, self._limit = file, limit
        self._places: set[str] = set()
        self._reads = self._damaged = 0
        self._reasons: Counter[str] = Counter()
        self._extras = Extras()  # failing to write the list only warns; the count remains
        for line in file.read_text().splitlines() if file is not None and file.exists() else ():
            try:
                self._places.add(json.loads(line)["place"])
            except (ValueError, KeyError, TypeError):
                continue  # a line that a kill cut short

    @property
    def count(self) -> int:
        """Number of different damaged records, including the records of an interrupted run."""
        return len(self._places)

    @property
    def file(self) -> Path | None:
        """File that lists the damaged records."""
        return self._file

    def metrics(self) -> dict[str, int]:
        """Returns {"damaged": count} of this process; empty for 0."""
        return {"damaged": self.count} if self.count else {}

    def watch(self, batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Removes and counts the damaged records of every batch.

        Raises:
          UserError: the share of damaged records is above the limit.
        """
        for batch in batches:
            self.saw(int(batch["valid"].sum()), batch.pop("damaged", ()))
            yield batch

    def saw(self, reads: int, damaged: Iterable[DamageNote]) -> None:
        """Counts records that were read, and the damaged ones among them.

        Raises:
          UserError: the share of damaged records is above the limit.
        """
        self._reads += reads
        for record, place, reason in damaged:
            self._damaged += 1
            if place in self._places:
                continue
            self._places.add(place)
            self._reasons[reason_group(reason)] += 1
            if self._file is not None:
                with self._extras(self._file.name), self._file.open("a") as file:
                    file.write(json.dumps({"record": record, "place": place, "why": reason}) + "\n")
        if self._damaged > self._limit * max(self._reads, LEAST_READS):
            raise UserError(self._summary())

    def _summary(self) -> str:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in self._reasons.most_common(5))
        listed = f" See {self._file}." if self._file is not None else ""
        return (
            f"{self._damaged:,} of {self._reads:,} records read were damaged, more than "
            f"config.loader.max_damaged {self._limit:g} allows ({reasons}). Repair them, or raise "
            f"the limit.{listed}"
        )


def reason_group(reason: str) -> str:
    """Returns a reason without its details, for counting."""
    return reason.split(" (")[0].split(", ")[0][:80]


def note(record: int, error: Damaged) -> DamageNote:
    """Returns a damaged record as batches list it."""
    return record, error.place, error.why


class SkippedRecords:
    """Counts records that a command cannot use, and warns of the first ones.

    Args:
      label: the records in words, such as "queries".
    """

    def __init__(self, label: str):
        self._label, self.count = label, 0
        self._last: Damaged | None = None

    def add(self, error: Damaged) -> None:
        """Counts a record."""
        self.count, self._last = self.count + 1, error
        if self.count <= NAMED:
            log.warning(f"skipped: {error}")

    def close(self) -> None:
        """Warns how many records were skipped."""
        if self.count:
            log.warning(f"skipped: {self.count:,} of the {self._label}")

    def check(self, total: int) -> None:
        """Raises a UserError if all records were skipped, so that there is nothing to write."""
        if self.count == total:
            raise UserError(
                f"none of the {self._label} can be used: mend them, or name other files; the last "
                f"one: {self._last}"
            )
