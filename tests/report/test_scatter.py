"""Scatter plots: everything lies inside, in the right place, and labels do not meet."""

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.report import scatter
from big_retrieval.report.drawing import log_ticks
from big_retrieval.report.scatter import Dot, DotGroup, Scatter, draw

DOTS = st.lists(
    st.builds(
        Dot,
        st.floats(1e-6, 1e6),
        st.floats(-10, 10),
        st.sampled_from(["bag", "all", "64", "256", "a longer label"]),
        joined=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def boxes(drawing: str) -> list[scatter.Box]:
    """The room of every label of a point."""
    pattern = r'<text x="([-\d.]+)" y="([-\d.]+)" text-anchor="(\w+)" class="c\d">([^<]*)<'
    found = re.findall(pattern, drawing)
    return [scatter._box(label, float(x), float(y), anchor) for x, y, anchor, label in found]


@settings(max_examples=60, deadline=None)
@given(st.lists(DOTS, min_size=1, max_size=4))
def test_everything_lies_inside_and_labels_do_not_meet(groups: list[list[Dot]]) -> None:
    made = [DotGroup(f"group {i}", dots, colour=i, shape=i) for i, dots in enumerate(groups)]
    drawing = draw(Scatter("title", "ms", "R@1", made)).split("</ul>")[-1]
    for name, most in (("x", scatter.WIDTH), ("y", scatter.HEIGHT)):
        for value in re.findall(rf' c?{name}[12]?="([^"]*)"', drawing):
            assert 0 <= float(value) <= most
    assert drawing.count("<title>") == sum(map(len, groups))
    for (left, top, right, bottom), other in itertools.combinations(boxes(drawing), 2):
        meet = left < other[2] and right > other[0] and top < other[3] and bottom > other[1]
        assert not meet


def test_points_stand_where_they_belong() -> None:
    dots = [Dot(0.1, 0.0, "left"), Dot(1.0, 0.5, "middle"), Dot(10.0, 1.0, "right", joined=False)]
    drawing = draw(Scatter("title", "ms", "MRR", [DotGroup("group", dots)]))
    left, right = scatter.LEFT, scatter.WIDTH - scatter.RIGHT
    low, high = scatter.HEIGHT - scatter.BOTTOM, scatter.TOP
    found = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawing)
    ][1:]  # the first one is the legend's
    middle = ((left + right) / 2, (low + high) / 2)
    assert found == [(left, low), pytest.approx(middle, abs=0.1), (right, high)]
    line = re.findall(r' d="(M[^"]*)"', drawing)
    assert line == [f"M{left} {low}L{middle[0]:.0f} {middle[1]:.0f}"]
    assert [label for label in ("left", "middle", "right") if f">{label}</text>" in drawing] == [
        "left", "middle", "right",
    ]  # fmt: skip


def test_a_plot_without_points() -> None:
    assert "no points" in draw(Scatter("title", "ms", "MRR", []))


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.floats(1, 1e9))
def test_log_ticks(low: float, factor: float) -> None:
    found = log_ticks(low, low * factor)
    assert 2 <= len(found) <= 24
    assert found == sorted(found)
    assert found[0] <= low
    assert found[-1] >= low * factor
    for tick in found:
        mantissa = tick / 10 ** math.floor(math.log10(tick) + 1e-9)
        assert min(abs(mantissa - k) for k in (1, 2, 5)) < 1e-6


def test_log_ticks_of_one_value() -> None:
    assert log_ticks(0.2, 0.2) == [0.2, 0.5]
    assert log_ticks(0.03, 0.3) == [0.02, 0.05, 0.1, 0.2, 0.5]
