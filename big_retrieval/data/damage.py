"""Damaged records of a run: counted, named in a file, and an error where they are too many."""

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

NAMED = 3  # records that a command skips and names
LEAST_READS = 1000  # a share is of so many reads at least: one of the first ten is not yet 10%
DamageNote = tuple[int, str, str]  # record, place, what is wrong


class record_at(reading):
    """A context in which one record is read: whatever goes wrong there, the record is `Damaged`.

    Data are untrusted, and libraries that decode them raise anything. So this one place turns every
    exception into the record's, errors of memory among them: a file can ask for more memory than
    any machine has. A mistake of ours is not hidden by that: the reason keeps the exception's type,
    a run does not start where none of the first records can be used (`batches.try_record`), and
    `Damage` ends a run with too many of them. Interrupts, exits and `UserError`s go through.
    """

    __slots__ = ()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        problem: BaseException | None = exc[1]
        if isinstance(problem, Damaged) and not problem.place:
            raise Damaged(self._place, problem.why.rstrip(".")) from problem
        if problem is not None and of_data(problem):
            raise Damaged(self._place, f"it cannot be used ({told(problem)})") from problem


def of_data(problem: BaseException) -> bool:
    """Whether an exception may come from the data: no `UserError`, interrupt or exit.

    Rust code that panics, such as a tokenizer's, raises what is no `Exception`.
    """
    if isinstance(problem, UserError):
        return False
    return isinstance(problem, Exception) or type(problem).__name__ == "PanicException"


def told(problem: BaseException) -> str:
    """An exception in one line, with its type."""
    kind, lines = type(problem), str(problem).strip().splitlines()
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name}: {lines[0].rstrip('.')[:200]}" if lines else name


def first_line(problem: BaseException) -> str:
    """What an exception of a library says first, without its type."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0].rstrip(".:")[:200]


class Damage:
    """What a process saw of damaged records.

    Args:
      file: a JSON object a line, for each record once: record, place, why; None: no file.
      limit: the share of damaged ones among the records read that is still borne.

    Attributes:
      count: records that were damaged so far, each once.
    """

    def __init__(self, file: Path | None, limit: float):
        self._file, self._limit = file, limit
        self._known: set[str] = set()
        self._reads = self._damaged = 0
        self._reasons: Counter[str] = Counter()
        self._extras = Extras()  # the count matters more than the names
        for line in file.read_text().splitlines() if file is not None and file.exists() else ():
            try:
                self._known.add(json.loads(line)["place"])
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a kill

    @property
    def count(self) -> int:
        """Records that were damaged so far, each once; those of an interrupted run too."""
        return len(self._known)

    @property
    def file(self) -> Path | None:
        """Where the damaged records are named."""
        return self._file

    def metrics(self) -> dict[str, int]:
        """`damaged`: the count, where there is any; of this process."""
        return {"damaged": self.count} if self.count else {}

    def watch(self, batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Takes the note of damaged records out of every batch.

        Raises:
          UserError: their share is above the limit.
        """
        for batch in batches:
            self.saw(int(batch["valid"].sum()), batch.pop("damaged", ()))
            yield batch

    def saw(self, reads: int, damaged: Iterable[DamageNote]) -> None:
        """Counts records that were read, and those that were damaged among them.

        Raises:
          UserError: the share of damaged ones is above the limit.
        """
        self._reads += reads
        for record, place, why in damaged:
            self._damaged += 1
            if place in self._known:
                continue
            self._known.add(place)
            self._reasons[kind_of(why)] += 1
            if self._file is not None:
                with self._extras(self._file.name), self._file.open("a") as file:
                    file.write(json.dumps({"record": record, "place": place, "why": why}) + "\n")
        if self._damaged > self._limit * max(self._reads, LEAST_READS):
            raise UserError(self._summary())

    def _summary(self) -> str:
        reasons = "; ".join(f"{count} x {why}" for why, count in self._reasons.most_common(5))
        named = f"; they are named in {self._file}" if self._file is not None else ""
        return (
            f"{self._damaged:,} of {self._reads:,} records read were damaged, more than "
            f"config.loader.max_damaged {self._limit:g} allows ({reasons}){named}: mend them or "
            "raise the limit."
        )


def kind_of(why: str) -> str:
    """A reason without its particulars, to be counted."""
    return why.split(" (")[0].split(", ")[0][:80]


def note(record: int, problem: Damaged) -> DamageNote:
    """A damaged record as batches carry it."""
    return record, problem.place, problem.why


class SkippedRecords:
    """Counts records that a command cannot use, and names the first ones in warnings.

    Attributes:
      last: what is wrong with the last one.
    """

    def __init__(self, what: str):
        self._what, self.count = what, 0
        self.last: Damaged | None = None

    def add(self, problem: Damaged) -> None:
        """Counts one."""
        self.count, self.last = self.count + 1, problem
        if self.count <= NAMED:
            log.warning(f"skipped: {problem}")

    def close(self) -> None:
        """Says how many there were."""
        if self.count:
            log.warning(f"skipped: {self.count:,} of the {self._what}")

    def check(self, total: int) -> None:
        """Raises a UserError where all were skipped, so that there is nothing to write."""
        if self.count == total:
            raise UserError(
                f"none of the {self._what} can be used: mend them, or name other files; the last "
                f"one: {self.last}"
            )
