"""Several sources in fixed shares."""

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from big_retrieval.config.ranges import Positive
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.file_sources import Pairs
from big_retrieval.data.formats.tables import digest_of
from big_retrieval.data.order import Order
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    cell_of,
    make_source,
    texts_of,
    value_of,
)
from big_retrieval.errors import UserError


@dataclass(frozen=True)
class MixturePart:
    """One source of a mixture."""

    source: Source = field(default_factory=Pairs)
    # relative share of the examples; None in all parts for shares by number of records
    weight: Positive | None = None


@register("source")
@dataclass(frozen=True)
class Mixture(Source):
    """Several sources in fixed shares; each is shuffled separately."""

    type: Literal["mixture"] = "mixture"
    parts: dict[str, MixturePart] = field(default_factory=dict)

    def check(self, path: str) -> Iterator[str]:
        if not self.parts:
            yield f"{path}.parts is empty; give it at least one source."
        weights = {name: part.weight for name, part in self.parts.items()}
        without = [name for name, weight in weights.items() if weight is None]
        if without and len(without) < len(weights):
            yield f"{path}.parts.{without[0]}.weight is None; give all parts a weight, or none."
        for name, part in self.parts.items():
            if isinstance(part.source, Mixture):
                yield f"{path}.parts.{name}.source is a mixture, too; give {path} its parts."
            yield from part.source.check(f"{path}.parts.{name}.source")

    def build(self) -> "MixedSource":
        sources = {name: make_source(part.source) for name, part in self.parts.items()}
        return MixedSource(sources, {name: part.weight for name, part in self.parts.items()})

    def inside(self) -> Iterator[Source]:
        for part in self.parts.values():
            yield from part.source.inside()


class MixedSource(RecordSource):
    """The records of several sources, one source after the other.

    Args:
      weights: relative share of the examples per part; None in all parts for their record counts.
    """

    def __init__(self, parts: Mapping[str, RecordSource], weights: Mapping[str, float | None]):
        self.parts = dict(parts)
        self.name = "+".join(self.parts)
        sizes = [len(source) for source in self.parts.values()]
        units = [
            size if weights[x] is None else weights[x] for x, size in zip(parts, sizes, strict=True)
        ]
        if 0 in units:
            empty = list(self.parts)[units.index(0)]
            raise UserError(f"part {empty!r} of the mixture has no records; remove it.")
        shares = np.array(units, float)
        self.shares = dict(zip(self.parts, (shares / shares.sum()).tolist(), strict=True))
        self._ends = list(itertools.accumulate(sizes))
        self._sources = list(self.parts.values())

    def __len__(self) -> int:
        return self._ends[-1]

    def span(self, index: int) -> tuple[int, int]:
        """Returns the records (start, stop) of the part that contains a record."""
        part = bisect.bisect_right(self._ends, index)
        return (self._ends[part - 1] if part else 0), self._ends[part]

    def _find(self, index: int) -> tuple[RecordSource, int]:
        self.check_index(index)
        return self._sources[bisect.bisect_right(self._ends, index)], index - self.span(index)[0]

    def __getitem__(self, index: int) -> Record:
        source, position = self._find(index)
        return source[position]

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        source, position = self._find(index)
        return texts_of(source, position, column)

    def value(self, index: int, column: str) -> Any:
        source, position = self._find(index)
        return value_of(source, position, column)

    def cell(self, index: int, column: str) -> Any:
        source, position = self._find(index)
        return cell_of(source, position, column)

    def place(self, index: int) -> str:
        source, position = self._find(index)
        return source.place(position)

    @property
    def fingerprint(self) -> str:
        """Digest of the parts' fingerprints; empty if no part has one."""
        parts = [source.fingerprint for source in self._sources]
        return digest_of(parts) if any(parts) else ""

    def order(self, seed: int) -> "MixedOrder":
        return MixedOrder(self, seed)

    def captions(self) -> Iterator[str]:
        return itertools.chain.from_iterable(source.captions() for source in self._sources)


class MixedOrder(Order):
    """Order of a mixture: each part is shuffled separately and repeated as needed.

    A fixed pattern maps positions to parts, so that the shares hold in every stretch of positions.
    """

    def __init__(self, mixture: MixedSource, seed: int):
        import grain  # not at the top: takes a second, and reading a config does not need it

        super().__init__(len(mixture), seed)
        parts, start = [], 0
        for part, source in enumerate(mixture.parts.values()):
            length = len(source)
            records = grain.MapDataset.range(start, start + length).seed(seed + part)
            parts.append(records.shuffle().repeat().map_with_index(_WithEpoch(length)))
            start += length
        self._mixed = grain.MapDataset.mix(parts, list(mixture.shares.values()))

    def record(self, position: int) -> tuple[int, int]:
        """Returns (epoch of the part, record index) of a position."""
        epoch, index = self._mixed[position]  # type: ignore[misc]
        return int(epoch), int(index)


class _WithEpoch:
    """Maps (position in a repeated part, record) to (epoch, record)."""

    def __init__(self, length: int):
        self._length = length

    def __call__(self, position: int, record: int) -> tuple[int, int]:
        return position // self._length, record
