"""Ranges of numbers in annotations."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from big_retrieval.config import ranges
from big_retrieval.config.ranges import Range, out_of_range


@dataclass(frozen=True)
class Inner:
    share: ranges.Share = 0.5
    free: float = -1.0


@dataclass(frozen=True)
class Outer:
    count: ranges.AtLeast1 = 1
    size: Annotated[int, Range(16)] = 16
    rate: ranges.Positive | None = None
    decay: ranges.ShareBelow1 = 0.0
    open: Annotated[float, Range(0, 1, open="both")] = 0.5
    seed: ranges.Seed = 0
    sizes: tuple[ranges.AtLeast1, ...] = (1, 2)
    inner: Inner = field(default_factory=Inner)
    named: dict[str, Inner] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (Outer(), []),
        (Outer(rate=0.1, decay=0.999, seed=2**31 - 1, inner=Inner(1.0)), []),
        (Outer(count=0), ["c.count is 0; it must be at least 1."]),
        (Outer(size=15), ["c.size is 15; it must be at least 16."]),
        (Outer(rate=0.0), ["c.rate is 0.0; it must be positive, or None."]),
        (Outer(rate=float("nan")), ["c.rate is nan; it must be positive, or None."]),
        (Outer(decay=1.0), ["c.decay is 1.0; it must be at least 0 and below 1."]),
        (Outer(open=0.0), ["c.open is 0.0; it must be above 0 and below 1."]),
        (Outer(open=1.0), ["c.open is 1.0; it must be above 0 and below 1."]),
        (Outer(seed=2**31), ["c.seed is 2147483648; it must be from 0 to 2147483647."]),
        (Outer(sizes=(3, 0)), ["c.sizes is (3, 0); its elements must be at least 1."]),
        (
            Outer(inner=Inner(-0.1), named={"a": Inner(2.0)}),
            ["c.inner.share is -0.1; it must be from 0 to 1.",
             "c.named.a.share is 2.0; it must be from 0 to 1."],
        ),
    ],
)  # fmt: skip
def test_out_of_range(tree: Outer, expected: list[str]) -> None:
    assert list(out_of_range(tree, "c")) == expected
