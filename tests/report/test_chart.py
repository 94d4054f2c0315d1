"""Charts: positions of lines and labels for all values; formats of numbers."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from big_retrieval.report import chart, drawing, numbers
from big_retrieval.report.chart import Chart, Series, render_chart

POINTS = st.dictionaries(
    st.integers(0, 10**7),
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    min_size=1,
    max_size=60,
).map(lambda found: sorted(found.items()))


def places(drawing: str, look: str = "") -> list[tuple[float, float]]:
    """All points of the paths with a style class."""
    points = []
    for path, kind in re.findall(r'<path[^>]*? d="([^"]*)" class="([^"]*)"', drawing):
        if look in kind:
            points += [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+?) ([-\d.]+)", path)]
    return points


def paths(points: list[tuple[int, float]], **changes: object) -> str:
    """The drawing of one line, without a legend."""
    return render_chart(Chart("title", "loss", [Series("line", points)], **changes))  # type: ignore


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(POINTS, min_size=1, max_size=6), zero=st.booleans())
@example(lines=[[(0, -2e300)]], zero=False)
@example(lines=[[(0, 1.0), (1, 1.7e308)], [(3, -1.7e308)]], zero=True)
def test_points_and_labels_are_inside_the_drawing(
    lines: list[list[tuple[int, float]]], zero: bool
) -> None:
    series = [Series(f"line {i}", line, i) for i, line in enumerate(lines)]
    drawing = render_chart(Chart("title", "loss", series, from_zero=zero)).split("</ul>")[-1]
    finite = any(math.isfinite(value) for line in lines for _, value in line)
    assert finite == ("<svg" in drawing)
    for name, most in (("x", chart.WIDTH), ("y", chart.HEIGHT)):
        for value in re.findall(rf' c?{name}[12]?="([^"]*)"', drawing):
            assert -0.1 <= float(value) <= most + 0.1
    for x, y in places(drawing):
        assert chart.LEFT - 0.1 <= x <= chart.WIDTH - chart.RIGHT + 0.1
        assert chart.TOP - 0.1 <= y <= chart.HEIGHT - chart.BOTTOM + 0.1
    heights = [float(y) for y in re.findall(r' y="([^"]*)" class="last', drawing)]
    assert all(b - a >= chart.LINE - 0.2 for a, b in itertools.pairwise(heights))


def test_line_goes_through_its_points() -> None:
    drawing = paths([(0, 0.0), (50, 5.0), (100, 10.0)])
    left, right = chart.LEFT, chart.WIDTH - chart.RIGHT
    low, high = chart.HEIGHT - chart.BOTTOM, chart.TOP
    middle = ((left + right) / 2, (low + high) / 2)
    assert places(drawing) == [(left, low), pytest.approx(middle, abs=0.1), (right, high)]
    assert ">10.00</text>" in drawing  # the last value
    assert "line, step 50: 5.000" in drawing  # beside a point


def test_line_breaks_at_nonfinite_values() -> None:
    drawing = paths([(1, 1.0), (2, math.nan), (3, 2.0), (4, 3.0), (5, math.inf)])
    path = re.findall(r' d="([^"]*)"', drawing)[0]
    assert path.count("M") == 2
    assert path.count("L") == 1
    assert "not finite at 2 step(s), first at 2" in drawing


@given(values=st.lists(st.floats(-5, 5), min_size=301, max_size=3000), most=st.integers(24, 300))
@settings(max_examples=25, deadline=None)
def test_thin_keeps_extremes_and_the_end(values: list[float], most: int) -> None:
    points = list(enumerate(values))
    kept = chart._thin(points, most)
    assert len(kept) <= most + 2
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert kept[-1] == points[-1]
    assert {min(v for _, v in kept), max(v for _, v in kept)} == {min(values), max(values)}


def test_running_mean_equals_numpy() -> None:
    values = np.random.default_rng(0).normal(size=400)
    found = dict(chart._mean(list(enumerate(values.tolist())), 500))
    assert len(found) == 400
    assert found[0] == values[0]
    for place in (3, 200):
        near = min(10, place)
        assert found[place] == pytest.approx(values[place - near : place + near + 1].mean())
    assert found[399] == pytest.approx(values[389:].mean())
    assert len(chart._mean(list(enumerate([1.0] * 5000)), 100)) <= 101


def schedules() -> dict[str, np.ndarray]:
    """Values of 200 logged steps that depend only on the step."""
    x = np.arange(200) / 199
    warm = np.minimum(1, x / 0.07)
    restarts = np.concatenate([np.linspace(1, 0, 40) for _ in range(5)])
    return {
        "cosine": warm * (1 + np.cos(np.pi * x)) / 2,
        "staircase": np.floor(10 * (1 - x)) / 10,
        "restarts": restarts,
        "constant": np.ones(200),
        "temperature": 5 + 6 * x**0.5,
    }


@pytest.mark.parametrize("name", schedules())
def test_schedule_is_not_smoothed(name: str) -> None:
    values = schedules()[name].tolist()
    drawing = paths(list(enumerate(values)))
    assert drawing.count("<path") == 1
    assert "raw" not in drawing
    assert f'class="last c0">{numbers.number(values[-1])}</text>' in drawing


def test_label_of_a_noisy_line_is_the_end_of_its_mean() -> None:
    noise = np.random.default_rng(0).normal(size=400)
    values = (3 * np.exp(-np.arange(400) / 20) + 3 + 0.1 * noise).tolist()  # as a loss falls
    values[-1] = 9.0  # the last logged value is far from the mean
    drawing = paths(list(enumerate(values)))
    assert drawing.count("<path") == 2
    mean = np.mean(values[-11:])
    assert f">{mean:.3f}</text>" in drawing
    assert ">9.000</text>" not in drawing
    height = float(re.findall(r' y="([^"]*)"[^>]*class="last', drawing)[0]) - 3.5
    assert height == pytest.approx(places(drawing, "c0 d0")[-1][1], abs=0.2)


@given(
    low=st.floats(-1e12, 1e12), size=st.floats(1e-9, 1e12), count=st.integers(2, 8)
)  # fmt: skip
def test_ticks_are_round_and_cover_the_values(low: float, size: float, count: int) -> None:
    high = low + size
    if not high > low or size < abs(low) * 1e-6:
        return
    found = drawing.ticks(low, high, count)
    assert 2 <= len(found) <= 2 * count + 2
    room = (found[-1] - found[0]) * 1e-6
    assert found[0] <= low + room
    assert found[-1] >= high - room
    step = np.diff(found)
    assert np.allclose(step, step[0], rtol=1e-4)
    mantissa = step[0] / 10 ** math.floor(math.log10(step[0]) + 1e-9)
    assert min(abs(mantissa - k) for k in (1, 2, 2.5, 5)) < 1e-3


def test_ticks_of_one_value_and_of_whole_numbers() -> None:
    assert drawing.ticks(0, 0)[0] <= 0 < drawing.ticks(0, 0)[-1]
    assert drawing.ticks(3, 3)[0] < 3 < drawing.ticks(3, 3)[-1]
    assert drawing.ticks(0, 3, integers=True) == [0, 1, 2, 3]
    assert all(tick == int(tick) for tick in drawing.ticks(0, 7, integers=True))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (0.0, "0"), (1234567, "1,234,567"), (0.5, "0.5000"), (-1.25, "−1.250"),
        (12.3456, "12.35"), (6.09e-7, "6.09e-7"), (float("nan"), "NaN"), (float("-inf"), "−∞"),
        (123456.7, "123,457"), (1e300, "1e+300"), (None, "–"), ("x", "x"), (True, "True"),
    ],
)  # fmt: skip
def test_numbers_as_words(value: object, shown: str) -> None:
    assert numbers.number(value) == shown


def test_metrics_have_their_units() -> None:
    assert numbers.metric("retrieval/x/R@5", 0.12345) == "12.3"
    assert numbers.labelled("zeroshot/x/top5_accuracy", 1) == "100.0%"
    assert numbers.metric("retrieval/x/mean_rank", 12.04) == "12.0"
    assert numbers.difference("a/R@1", 0.5, 0.25) == "−25.0"
    assert numbers.difference("a/R@1", 0.5, 0.5) == "0.0"
    assert numbers.difference("loss", 2.0, 2.5) == "+0.5000"
    assert numbers.difference("loss", 2.0, None) == "–"
    assert numbers.difference("loss", 2.0, math.nan) == "–"
    assert numbers.duration(3725) == "1\xa0h\xa002\xa0min"
    assert sorted(["R@10", "R@5", "R@1"], key=numbers.natural) == ["R@1", "R@5", "R@10"]
