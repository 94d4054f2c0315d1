"""Which record comes at which position, and its random numbers: pure functions of integers."""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.data.sources import RecordSource


class Order:
    """Which record each position of a run is: another global shuffle in every epoch.

    Raises:
      UserError: no records or a negative seed.
    """

    def __init__(self, length: int, seed: int):
        import grain  # takes a second, which reading a config would pay

        if length < 1:
            raise UserError("The source has no records; training needs at least one.")
        if seed < 0:
            raise UserError(f"seed {seed} is negative; use 0 or more.")
        self.length, self.seed = length, seed
        # repeat() gives every epoch another shuffle; a position is looked up without those before.
        self._shuffled = grain.MapDataset.range(length).seed(seed).shuffle().repeat()

    def record(self, position: int) -> tuple[int, int]:
        """(epoch, record index) of a position; epoch = position // length."""
        return position // self.length, int(cast(int, self._shuffled[position]))

    def ids(self, start: int, count: int) -> list[int]:
        """The record indices of positions start .. start + count - 1."""
        return [self.record(position)[1] for position in range(start, start + count)]

    def digest(self, start: int, count: int) -> str:
        """Twelve hex digits over `ids(start, count)`: whether two runs read the same records."""
        return hashlib.sha256(np.array(self.ids(start, count), "<i8").tobytes()).hexdigest()[:12]


def example_rng(seed: int, epoch: int, index: int, use: int = 0) -> np.random.Generator:
    """The random numbers of one record in one epoch: Philox keyed by the three numbers.

    Streams never overlap: the index and the use are the highest words of the 256-bit counter.

    Args:
      use: 0 for its example; others are further streams of the same record.
    """
    key = np.array([seed, epoch], np.uint64)
    counter = np.array([0, 0, use, index], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def stand_in(
    source: "RecordSource", seed: int, epoch: int, index: int, tries: int
) -> Iterator[tuple[int, np.random.Generator]]:
    """A record, then others of the same source that may take its place, with their random numbers.

    All follows from the four numbers and which records are damaged, so that nothing else moves.
    """
    yield index, example_rng(seed, epoch, index)
    # A stream apart, which first says the stand-in and then what is drawn of that record.
    rng = example_rng(seed, epoch, index, use=1)
    start, stop = source.span(index)
    for _ in range(tries - 1):
        yield int(rng.integers(start, stop)), rng
