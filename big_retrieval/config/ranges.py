"""Ranges of numbers in the annotation of a key: `threads: AtLeast1 = 2`.

A range of a tuple applies to its elements; None always fits.
"""

import functools
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from big_retrieval.config.annotations import groups_in

LIMIT = 2**31  # of seeds and steps, which are 32-bit numbers on the devices


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `open` names excluded ends: "low", "high", "both" or ""."""

    low: float = -math.inf
    high: float = math.inf
    open: str = ""

    def holds(self, value: float) -> bool:
        """Returns True if a number is in the range, which NaN and infinity never are."""
        above = self.low < value if self.open in ("low", "both") else self.low <= value
        below = value < self.high if self.open in ("high", "both") else value <= self.high
        return above and below and abs(value) < math.inf

    def __str__(self) -> str:
        if self.high == math.inf:
            if self.open:
                return "positive" if self.low == 0 else f"above {self.low:g}"
            return "0 or more" if self.low == 0 else f"at least {self.low:g}"
        if not self.open:
            return f"from {self.low:.12g} to {self.high:.12g}"
        low = f"above {self.low:g}" if self.open in ("low", "both") else f"at least {self.low:g}"
        return f"{low} and below {self.high:g}"


AtLeast1 = Annotated[int, Range(1)]
AtLeast0 = Annotated[int, Range(0)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open="low")]
Share = Annotated[float, Range(0, 1)]
ShareInside = Annotated[float, Range(0, 1, open="both")]
ShareBelow1 = Annotated[float, Range(0, 1, open="high")]  # as of a dropout, or of a momentum
Seed = Annotated[int, Range(0, LIMIT - 1)]
Steps = Annotated[int, Range(1, LIMIT - 1)]


def out_of_range(tree: Any, path: str) -> Iterator[str]:
    """Yields an error message for every value of a tree of dataclasses outside its range."""
    for group_path, group in groups_in(tree, path):
        for key, (range_, optional) in _ranges(type(group)).items():
            value = getattr(group, key)
            several = isinstance(value, tuple | list)
            if value is not None and not all(map(range_.holds, value if several else [value])):
                subject = "its elements" if several else "it"
                must = f"{subject} must be {range_}{', or None' * optional}"
                yield f"{group_path}.{key} is {value}; {must}."


@functools.cache
def _ranges(cls: type) -> Mapping[str, tuple[Range, bool]]:
    """Returns key -> (its range, True if it may be None), for keys with a range."""
    ranges = {}
    for key, hint in typing.get_type_hints(cls, include_extras=True).items():
        inside = [hint, *typing.get_args(hint)]
        for note in (note for part in inside for note in getattr(part, "__metadata__", ())):
            if isinstance(note, Range):
                ranges[key] = note, type(None) in inside
    return ranges
