"""Order of the records, and random numbers per record: pure functions of integers."""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.data.sources import RecordSource


class Order:
    """Maps each position of a run to a record, with a different global shuffle in every epoch."""

    def __init__(self, length: int, seed: int):
        import grain  # not at the top: takes a second, and reading a config does not need it

        if length < 1:
            raise UserError("The source has no records; training needs at least one.")
        self.length, self.seed = length, seed
        # repeat() shuffles each epoch differently; any position can be looked up directly.
        self._shuffled = grain.MapDataset.range(length).seed(seed).shuffle().repeat()

    def record(self, position: int) -> tuple[int, int]:
        """Returns (epoch, record index) of a position; epoch = position // length."""
        return position // self.length, int(cast(int, self._shuffled[position]))

    def ids(self, start: int, count: int) -> list[int]:
        """Returns the record indices of positions start .. start + count - 1."""
        return [self.record(position)[1] for position in range(start, start + count)]

    def digest(self, start: int, count: int) -> str:
        """Returns twelve hex digits, equal if two runs read the same `ids(start, count)`."""
        return hashlib.sha256(np.array(self.ids(start, count), "<i8").tobytes()).hexdigest()[:12]


def example_rng(seed: int, epoch: int, index: int, use: int = 0) -> np.random.Generator:
    """Returns the random generator of one record in one epoch: Philox with the key (seed, epoch).

    Streams never overlap: the index and the use are the highest words of the 256-bit counter.

    Args:
      use: 0 for the example of the record; other values give further streams.
    """
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, 0, use, index], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def replacements(
    source: "RecordSource", seed: int, epoch: int, index: int, tries: int
) -> Iterator[tuple[int, np.random.Generator]]:
    """Yields a record, then records that may replace it, each with its random generator.

    The result depends only on the arguments, so a damaged record changes no other example.
    """
    yield index, example_rng(seed, epoch, index)
    # A separate stream: it selects the replacement, then draws from the selected record.
    rng = example_rng(seed, epoch, index, use=1)
    start, stop = source.span(index)
    for _ in range(tries - 1):
        yield int(rng.integers(start, stop)), rng
