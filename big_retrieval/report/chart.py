"""Line charts for a column of 340 to 480 pixels."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from big_retrieval.report.drawing import Axes, at, figure, label, ticks
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import labelled, short
from big_retrieval.report.read import Points

WIDTH, HEIGHT = 400, 216
MARGINS = LEFT, RIGHT, TOP, BOTTOM = 46, 60, 10, 26
MARKED = 40  # maximum number of points in a line with marks
SMOOTHED = 80  # maximum number of points in a line without a mean
NOISY = 0.25  # share of points at which a noisy line turns up or down; two thirds for pure noise
LINE = 12.5  # minimum distance in pixels between labels of last values
WIDEST = 7  # maximum number of letters in the label of a last value


@dataclass(frozen=True)
class Series:
    """Line of a chart."""

    label: str  # text in the legend
    points: Points  # (step, value), ascending by step
    color: int = 0  # index of a color of the style sheet
    dash: int = 0  # index of a dash pattern of the style sheet

    @property
    def look(self) -> str:
        """Classes of the style sheet."""
        return f"c{self.color} d{self.dash}"

    @property
    def finite(self) -> Points:
        """The points whose values are finite."""
        return [point for point in self.points if math.isfinite(point[1])]

    @property
    def noisy(self) -> bool:
        """True if a mean is drawn, too: for long, noisy lines, not for schedules with corners."""
        values = [value for _, value in self.finite]
        rises = [b > a for a, b in itertools.pairwise(values) if a != b]
        turns = sum(a != b for a, b in itertools.pairwise(rises))
        return len(values) > SMOOTHED and turns > NOISY * len(values)


@dataclass(frozen=True)
class Chart:
    """Lines over the steps."""

    title: str
    metric: str  # one of the metrics, for the unit
    series: Sequence[Series]
    from_zero: bool = False  # True if the axis of values includes 0
    most_points: int = 300  # per line; longer lines keep the extremes of each stretch

    @property
    def smoothed(self) -> bool:
        """True if the chart has thin and thick lines."""
        return any(series.noisy for series in self.series)


def render_chart(chart: Chart) -> Html:
    """Builds a figure with a title, a legend if there are several lines, and the drawing."""
    several = len(chart.series) > 1
    legend = [(tag("path", d="M1 6L25 6", class_=s.look), s.label) for s in chart.series if several]
    steps = sorted({s for line in chart.series for s, v in line.points if not math.isfinite(v)})
    lost = f"not finite at {len(steps):,} step(s), first at {steps[0]:,}" if steps else ""
    shown = [(series, series.finite) for series in chart.series if series.finite]
    if not shown:
        empty = tag("p", "no finite value", class_="empty")
        return figure(chart.title, lost, legend, empty)
    axes = _axes(chart, [points for _, points in shown])
    parts = axes.grid("step", chart.metric)
    ends = []
    for series, points in shown:
        mean = _mean(points, chart.most_points) if series.noisy else []
        parts += _line(chart, series, points, mean, axes)
        ends.append((series, *(mean or points)[-1]))
    ranges = (f"{series.label}: {_range(chart, points)}" for series, points in shown)
    drawing = axes.svg(
        [parts, _last_values(chart, ends, axes)], f"{chart.title}. {'; '.join(ranges)}"
    )
    return figure(chart.title, lost, legend, drawing)


def _axes(chart: Chart, finite: list[Points]) -> Axes:
    steps = [step for points in finite for step, _ in points]
    values = [value for points in finite for _, value in points]
    # The difference of two numbers near the largest float would be infinite.
    low, high = (min(max(value, -1e300), 1e300) for value in (min(values), max(values)))
    low = min(low, 0.0) if chart.from_zero else low
    last = max(steps)
    first = 0 if min(steps) < last / 2 or len(set(steps)) == 1 else min(steps)
    across = ticks(first, max(last, first + 1), 5, integers=True)
    across = [tick for tick in across if tick <= last] if len(across) > 2 else across
    if across[-1] < last:
        across.append(float(last))
    return Axes(WIDTH, HEIGHT, MARGINS, across, ticks(low, high, 5))


def _line(chart: Chart, series: Series, points: Points, mean: Points, axes: Axes) -> Iterator[Html]:
    """Draws a line, marks if it has few points, and the mean over it if it has one."""
    name = tag("title", f"{series.label}: {_range(chart, points)}")
    look = f"{series.look} raw" if mean else series.look
    yield tag("path", name, d=_path(_thin(series.points, chart.most_points), axes), class_=look)
    if mean:
        yield tag("path", name, d=_path(mean, axes), class_=series.look)
    for step, value in points if len(points) <= MARKED else ():
        x, y = axes.place(step, value)
        title = tag("title", f"{series.label}, step {step:,}: {labelled(chart.metric, value)}")
        yield tag("circle", title, cx=at(x), cy=at(y), r=2.4, class_=series.look)


def _path(points: Points, axes: Axes) -> str:
    """Returns the path through finite points, broken at other points."""
    commands, pen = [], "M"
    for step, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        x, y = axes.place(step, value)
        commands.append(f"{pen}{at(x)} {at(y)}")
        pen = "L"
    return "".join(commands)


def _thin(points: Points, limit: int) -> Points:
    """Returns about `limit` points: the extremes and one non-finite value of each stretch."""
    if len(points) <= limit:
        return points
    stretch = -(-len(points) * 2 // limit)
    out: Points = []
    for start in range(0, len(points), stretch):
        block = points[start : start + stretch]
        ordered = sorted((p for p in block if math.isfinite(p[1])), key=lambda p: p[1])
        broken = [p for p in block if not math.isfinite(p[1])][:1]
        out += sorted({*ordered[:1], *ordered[-1:], *broken}, key=lambda p: p[0])
    return out if out[-1] == points[-1] else [*out, points[-1]]


def _mean(points: Points, limit: int) -> Points:
    """Returns running means over a twentieth of the points, at about `limit` points."""
    half, last = max(1, len(points) // 40), len(points) - 1
    out = []
    for index in sorted({*range(0, len(points), -(-len(points) // limit)), last}):
        before = min(half, index)
        after = min(half, last - index, before)  # symmetric: curves are steep at first
        window = points[index - before : index + after + 1]
        out.append((points[index][0], math.fsum(value / len(window) for _, value in window)))
    return out


def _last_values(
    chart: Chart, ends: Sequence[tuple[Series, int, float]], axes: Axes
) -> Iterator[Html]:
    """Labels the end of each line, or of its mean, with its value; labels never overlap."""
    ordered = sorted((axes.place(step, value)[1], value, s.color) for s, step, value in ends)
    heights: list[float] = []
    for y, _, _ in ordered:
        heights.append(max(y, heights[-1] + LINE if heights else TOP))
    lowest = HEIGHT - BOTTOM
    for i in reversed(range(len(heights))):  # move labels below the drawing up
        heights[i] = min(heights[i], lowest)
        lowest = heights[i] - LINE
    for y, (_, value, color) in zip(heights, ordered, strict=True):
        text = labelled(chart.metric, value)
        text = text if len(text) <= WIDEST else short(value)
        yield label(text, WIDTH - RIGHT + 6, y + 3.5, look=f"last c{color}")


def _range(chart: Chart, points: Points) -> str:
    values = [value for _, value in points]
    first, last, low, high = (
        labelled(chart.metric, v) for v in (values[0], values[-1], min(values), max(values))
    )
    return f"first {first}, last {last}, least {low}, most {high}"
