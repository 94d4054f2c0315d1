"""Line charts as SVG, for a column of 340 to 480 pixels. Colours come from the style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import labelled, short, ticks
from big_retrieval.report.read import Points

WIDTH, HEIGHT = 400, 216
LEFT, RIGHT, TOP, BOTTOM = 46, 54, 10, 26
MARKED = 40  # points of a series that are marked each
SMOOTHED = 80  # points from which on a mean is drawn over the noise
LINE = 12.5  # between the labels of two last values


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
      label: in the legend.
      points: (step, value), ascending by step.
      colour: number of a colour of the style sheet.
      dash: number of a dash pattern of the style sheet.
    """

    label: str
    points: Points
    colour: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Chart:
    """Some lines over the steps.

    Attributes:
      title: what is shown.
      metric: a metric of it, for the unit.
      series: the lines.
      from_zero: whether the axis of values includes 0.
      most_points: of a line; longer ones keep the extremes of each stretch.
    """

    title: str
    metric: str
    series: Sequence[Series]
    from_zero: bool = False
    most_points: int = 300


@dataclass(frozen=True)
class _ChartAxes:
    x: list[float]
    y: list[float]

    def place(self, step: float, value: float) -> tuple[float, float]:
        value = min(max(value, self.y[0]), self.y[-1])  # beyond only where floats end
        across = (step - self.x[0]) / (self.x[-1] - self.x[0])
        up = (value - self.y[0]) / (self.y[-1] - self.y[0])
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )


def draw(chart: Chart) -> Html:
    """A figure with a title, a legend where there are several lines, and the drawing."""
    legend = None
    if len(chart.series) > 1:
        legend = tag(
            "ul",
            (tag("li", _swatch(s), tag("bdi", s.label)) for s in chart.series),
            class_="legend",
        )
    finite = [(s, [p for p in s.points if math.isfinite(p[1])]) for s in chart.series]
    lost = _lost(chart)
    if not any(points for _, points in finite):
        drawing = tag("p", "no finite value", class_="empty")
    else:
        drawing = _drawing(chart, [points for _, points in finite])
    return tag(
        "figure",
        tag(
            "figcaption", tag("b", chart.title), tag("span", lost, class_="note") if lost else None
        ),
        legend,
        drawing,
        class_="chart",
    )


def is_smoothed(chart: Chart) -> bool:
    """Whether a chart has thin and thick lines."""
    return any(len(series.points) > SMOOTHED for series in chart.series)


def _lost(chart: Chart) -> str:
    steps = sorted({s for line in chart.series for s, v in line.points if not math.isfinite(v)})
    return f"not finite at {len(steps):,} step(s), first at {steps[0]:,}" if steps else ""


def _axes(chart: Chart, finite: list[Points]) -> _ChartAxes:
    steps = [step for points in finite for step, _ in points]
    values = [value for points in finite for _, value in points]
    low, high = min(values), max(values)
    if chart.from_zero and low > 0:
        low = 0.0
    # Numbers near the largest float have no distance that is one.
    low, high = (min(max(value, -1e300), 1e300) for value in (low, high))
    first = 0 if min(steps) < max(steps) / 2 or len(set(steps)) == 1 else min(steps)
    across = ticks(first, max(max(steps), first + 1), 5, whole=True)
    across = [t for t in across if t <= max(steps)] if len(across) > 2 else across
    if across[-1] < max(steps):
        across = [*across, float(max(steps))]
    return _ChartAxes(across, ticks(low, high, 5))


def _drawing(chart: Chart, finite: list[Points]) -> Html:
    axes = _axes(chart, finite)
    parts: list[Html] = [*_grid(chart, axes)]
    for series, points in zip(chart.series, finite, strict=True):
        parts += _line(chart, series, points, axes)
    parts += _last_values(chart, finite, axes)
    return tag(
        "svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=_words(chart, finite)
    )


def _grid(chart: Chart, axes: _ChartAxes) -> list[Html]:
    parts = []
    for value in axes.y:
        _, y = axes.place(axes.x[0], value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_at(y), y2=_at(y), class_="grid"))
        parts.append(
            tag("text", _tick(chart, value), x=LEFT - 6, y=_at(y + 3.5), text_anchor="end")
        )
    last = len(axes.x) - 1
    for place, step in enumerate(axes.x):
        x, y = axes.place(step, axes.y[0])
        crowded = place == last - 1 and axes.place(axes.x[last], axes.y[0])[0] - x < 34
        parts.append(tag("line", x1=_at(x), x2=_at(x), y1=_at(y), y2=_at(y + 4), class_="grid"))
        if not crowded:
            parts.append(tag("text", short(step), x=_at(x), y=HEIGHT - 9, text_anchor="middle"))
    parts.append(tag("text", "step", x=WIDTH - 4, y=HEIGHT - 9, text_anchor="end"))
    return parts


def _tick(chart: Chart, value: float) -> str:
    percent = labelled(chart.metric, 0.5).endswith("%")
    return f"{short(round(100 * value, 9))}%" if percent else short(value)


def _line(chart: Chart, series: Series, points: Points, axes: _ChartAxes) -> list[Html]:
    look = f"c{series.colour} d{series.dash}"
    name = tag("title", f"{series.label}: {_range(chart, points)}") if points else None
    out = []
    smooth = len(points) > SMOOTHED
    raw = _thin(series.points, chart.most_points)
    out.append(tag("path", name, d=_path(raw, axes), class_=f"{look}{' raw' if smooth else ''}"))
    if smooth:
        mean = _mean(points, chart.most_points)
        out.append(tag("path", name, d=_path(mean, axes), class_=look))
    elif len(points) <= MARKED:
        for step, value in points:
            x, y = axes.place(step, value)
            words = f"{series.label}, step {step:,}: {labelled(chart.metric, value)}"
            out.append(tag("circle", tag("title", words), cx=_at(x), cy=_at(y), r=2.4, class_=look))
    return out


def _path(points: Points, axes: _ChartAxes) -> str:
    """The line through finite points, broken at the others."""
    words, pen = [], "M"
    for step, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        x, y = axes.place(step, value)
        words.append(f"{pen}{_at(x)} {_at(y)}")
        pen = "L"
    return "".join(words)


def _thin(points: Points, most: int) -> Points:
    """At most about `most` points: the smallest and largest of each stretch, and what breaks it."""
    if len(points) <= most:
        return points
    stretch = -(-len(points) * 2 // most)
    out: Points = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        finite = [p for p in part if math.isfinite(p[1])]
        kept = {min(finite, key=_value), max(finite, key=_value)} if finite else set()
        broken = [p for p in part if not math.isfinite(p[1])][:1]
        out += sorted({*kept, *broken}, key=lambda p: p[0])
    return out if out[-1] == points[-1] else [*out, points[-1]]


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _mean(points: Points, most: int) -> Points:
    """The mean over about a twentieth of the points around each of at most about `most` of them."""
    half, last = max(1, len(points) // 40), len(points) - 1
    out = []
    for place in sorted({*range(0, len(points), -(-len(points) // most)), last}):
        before = min(half, place)
        behind = min(half, last - place, before)  # curves are steep where they begin
        part = points[place - before : place + behind + 1]
        out.append((points[place][0], math.fsum(value / len(part) for _, value in part)))
    return out


def _last_values(chart: Chart, finite: list[Points], axes: _ChartAxes) -> list[Html]:
    """The last value of each line at its end, moved apart where they would meet."""
    found = []
    for series, points in zip(chart.series, finite, strict=True):
        if points:
            found.append(
                (axes.place(*points[-1])[1], labelled(chart.metric, points[-1][1]), series)
            )
    found.sort(key=lambda item: item[0])
    height = TOP
    places = []
    for y, _, _ in found:
        height = max(height, y)
        places.append(height)
        height += LINE
    over = max(0.0, height - LINE - (HEIGHT - BOTTOM)) if places else 0.0
    for i in reversed(range(len(places))):  # push back up what left the drawing
        limit = HEIGHT - BOTTOM if i == len(places) - 1 else places[i + 1] - LINE
        places[i] = min(places[i], limit) if over else places[i]
    return [
        tag("text", words, x=WIDTH - RIGHT + 6, y=_at(y + 3.5), class_=f"last c{series.colour}")
        for y, (_, words, series) in zip(places, found, strict=True)
    ]


def _swatch(series: Series) -> Html:
    look = f"c{series.colour} d{series.dash}"
    return tag(
        "svg", tag("path", d="M1 5L25 5", class_=look), viewBox="0 0 26 10", width=26, height=10,
        aria_hidden="true",
    )  # fmt: skip


def _range(chart: Chart, points: Points) -> str:
    values = [value for _, value in points]
    first, last, low, high = (
        labelled(chart.metric, v) for v in (values[0], values[-1], min(values), max(values))
    )
    return f"first {first}, last {last}, least {low}, most {high}"


def _words(chart: Chart, finite: list[Points]) -> str:
    lines = [
        f"{series.label}: {_range(chart, points)}"
        for series, points in zip(chart.series, finite, strict=True)
        if points
    ]
    return f"{chart.title}. {'; '.join(lines)}"


def _at(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")
