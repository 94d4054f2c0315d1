"""Points over a logarithmic axis as SVG: what something gives against what it costs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import labelled, number, short, ticks

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 52, 30, 14, 44
RADIUS = 4.2
LETTER, LINE = 6.2, 12.0  # about the size of a label's letters
COLOURS, SHAPES = 6, 4  # that there are; the next ones begin anew
CORNERS = {  # of markers that are no circles, in radii
    1: ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    2: ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    3: ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
}
BESIDE = (  # where a label may stand, the best place first: right, down, and its anchor
    (8, 4, "start"), (-8, 4, "end"), (0, -8, "middle"), (0, 16, "middle"), (7, -6, "start"),
    (7, 14, "start"), (-7, -6, "end"), (-7, 14, "end"), (8, -18, "start"), (8, 26, "start"),
)  # fmt: skip
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Dot:
    """A point.

    Attributes:
      x: above 0.
      y: a value of the plot's metric.
      label: beside it, where there is room.
      words: shown when it is pointed at.
      joined: whether the line of its group goes through it.
    """

    x: float
    y: float
    label: str
    words: str = ""
    joined: bool = True


@dataclass(frozen=True)
class DotGroup:
    """Some points that look alike.

    Attributes:
      label: in the legend.
      dots: in the order of their line.
      colour: number of a colour.
      shape: number of a marker: circle, square, diamond, triangle.
    """

    label: str
    dots: Sequence[Dot]
    colour: int = 0
    shape: int = 0

    @property
    def look(self) -> str:
        """Classes of the style sheet."""
        return f"c{self.colour % COLOURS} d0"


@dataclass(frozen=True)
class Scatter:
    """A plot.

    Attributes:
      title: what is shown.
      x_name: of the logarithmic axis, with its unit.
      metric: of the other axis.
      groups: the points.
    """

    title: str
    x_name: str
    metric: str
    groups: Sequence[DotGroup]


@dataclass(frozen=True)
class _ScatterAxes:
    x: list[float]
    y: list[float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.x[0]) / math.log(self.x[-1] / self.x[0])
        up = (y - self.y[0]) / (self.y[-1] - self.y[0])
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )


def draw(plot: Scatter) -> Html:
    """A figure with a title, a legend and the drawing."""
    legend = tag(
        "ul", (tag("li", _swatch(g), tag("bdi", g.label)) for g in plot.groups), class_="legend"
    )
    head = tag("figcaption", tag("b", plot.title))
    return tag("figure", head, legend, _drawing(plot), class_="chart scatter")


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around [low, high]: at least two, ascending.

    Args:
      low: above 0.
      high: not below it.
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{k}e{power}") for power in powers for k in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = min(i for i, step in enumerate(steps) if step >= high)
    found = steps[first : max(last, first + 1) + 1]
    if len(found) > 10:  # powers of ten alone, and the ends
        inner = [step for step in found[1:-1] if f"{step:e}".startswith("1.0")]
        return [found[0], *inner, found[-1]]
    return found


def _drawing(plot: Scatter) -> Html:
    dots = [dot for group in plot.groups for dot in group.dots]
    if not dots:
        return tag("p", "no points", class_="empty")
    values = [dot.y for dot in dots]
    axes = _ScatterAxes(
        log_ticks(min(dot.x for dot in dots), max(dot.x for dot in dots)),
        ticks(min(values), max(values), 6),
    )
    parts: list[Html] = [*_grid(plot, axes)]
    for group in plot.groups:
        line = [axes.place(dot.x, dot.y) for dot in group.dots if dot.joined]
        if len(line) > 1:
            way = "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
            parts.append(tag("path", d=f"M{way}", class_=f"{group.look} raw"))
    parts += _labels(plot, axes)
    for group in plot.groups:
        for dot in group.dots:
            x, y = axes.place(dot.x, dot.y)
            words = f"{group.label}, {dot.label}: {dot.words or labelled(plot.metric, dot.y)}"
            parts.append(_marker(group, x, y, tag("title", words)))
    view = f"0 0 {WIDTH} {HEIGHT}"
    return tag("svg", parts, viewBox=view, role="img", aria_label=_told(plot))


def _grid(plot: Scatter, axes: _ScatterAxes) -> Iterator[Html]:
    percent = labelled(plot.metric, 0.5).endswith("%")
    for value in axes.y:
        _, y = axes.place(axes.x[0], value)
        words = f"{short(round(100 * value, 9))}%" if percent else short(value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        yield tag("text", words, x=LEFT - 6, y=f"{y + 3.5:.1f}", text_anchor="end")
    for value in axes.x:
        x, y = axes.place(value, axes.y[0])
        yield tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=f"{y:.1f}", class_="grid")
        yield tag("text", short(value), x=f"{x:.1f}", y=f"{y + 16:.1f}", text_anchor="middle")
    yield tag(
        "text", plot.x_name, x=(LEFT + WIDTH - RIGHT) // 2, y=HEIGHT - 8, text_anchor="middle"
    )


def _marker(group: DotGroup, x: float, y: float, title: Html | None = None) -> Html:
    corners = CORNERS.get(group.shape % SHAPES)
    if corners is None:
        return tag("circle", title, cx=f"{x:.1f}", cy=f"{y:.1f}", r=RADIUS, class_=group.look)
    way = "L".join(f"{x + RADIUS * a:.1f} {y + RADIUS * b:.1f}" for a, b in corners)
    return tag("path", title, d=f"M{way}Z", class_=group.look)


def _labels(plot: Scatter, axes: _ScatterAxes) -> Iterator[Html]:
    """The labels of the points beside which neither points nor other labels stand."""
    places = [axes.place(dot.x, dot.y) for group in plot.groups for dot in group.dots]
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places]
    looks = [(group, dot) for group in plot.groups for dot in group.dots]
    for (group, dot), (x, y) in zip(looks, places, strict=True):
        # As they are written: rounded afterwards, labels that just fit would meet.
        beside = [(round(x + right, 1), round(y + down, 1), at) for right, down, at in BESIDE]
        boxes = [_box(dot.label, *place) for place in beside]
        fits = [place for place, box in enumerate(boxes) if _free(box, taken)]
        if not fits:
            continue
        left, base, anchor = beside[fits[0]]
        taken.append(boxes[fits[0]])
        look = f"c{group.colour % COLOURS}"
        yield tag(
            "text", dot.label, x=f"{left:.1f}", y=f"{base:.1f}", text_anchor=anchor, class_=look
        )


def _box(label: str, x: float, y: float, anchor: str) -> Box:
    """The room that a label takes whose baseline begins, ends or has its middle at a place."""
    width = LETTER * len(label)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y - 0.75 * LINE, left + width, y + 0.25 * LINE


def _free(box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    inside = left >= LEFT and right <= WIDTH and top >= 0 and bottom <= HEIGHT - BOTTOM
    return inside and not any(
        left < r and right > lo and top < b and bottom > t for lo, t, r, b in taken
    )


def _swatch(group: DotGroup) -> Html:
    return tag(
        "svg", _marker(group, 13, 6), viewBox="0 0 26 12", width=26, height=12, aria_hidden="true"
    )


def _told(plot: Scatter) -> str:
    parts = [
        f"{group.label}: "
        + "; ".join(f"{d.label} {number(d.x)}, {labelled(plot.metric, d.y)}" for d in group.dots)
        for group in plot.groups
    ]
    return f"{plot.title}. {'. '.join(parts)}"
