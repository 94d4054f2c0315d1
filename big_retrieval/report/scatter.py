"""Points over a logarithmic axis: what something gives against what it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from big_retrieval.report.drawing import Axes, at, figure, label, log_ticks, ticks
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import labelled, number

WIDTH, HEIGHT = 640, 380
MARGINS = LEFT, RIGHT, TOP, BOTTOM = 52, 30, 14, 44
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
        """Class of the style sheet."""
        return f"c{self.colour % COLOURS}"

    def marker(self, x: float, y: float, title: Html | None = None) -> Html:
        """A marker at a pixel."""
        corners = CORNERS.get(self.shape % SHAPES)
        if corners is None:
            return tag("circle", title, cx=at(x), cy=at(y), r=RADIUS, class_=self.look)
        way = "L".join(f"{at(x + RADIUS * a)} {at(y + RADIUS * b)}" for a, b in corners)
        return tag("path", title, d=f"M{way}Z", class_=self.look)


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


def draw(plot: Scatter) -> Html:
    """A figure with a title, a legend and the drawing."""
    dots = [(group, dot) for group in plot.groups for dot in group.dots]
    legend = [(group.marker(13, 6), group.label) for group in plot.groups]
    if not dots:
        return figure(plot.title, "", legend, tag("p", "no points", class_="empty"))
    xs, ys = [dot.x for _, dot in dots], [dot.y for _, dot in dots]
    across, up = log_ticks(min(xs), max(xs)), ticks(min(ys), max(ys), 6)
    axes = Axes(WIDTH, HEIGHT, MARGINS, across, up, log=True)
    parts = axes.grid(plot.x_name, plot.metric)
    for group in plot.groups:
        line = [axes.place(dot.x, dot.y) for dot in group.dots if dot.joined]
        if len(line) > 1:
            way = "L".join(f"{at(x)} {at(y)}" for x, y in line)
            parts.append(tag("path", d=f"M{way}", class_=f"{group.look} raw"))
    placed = [(group, dot, axes.place(dot.x, dot.y)) for group, dot in dots]
    parts += _labels(placed)
    for group, dot, (x, y) in placed:
        words = f"{group.label}, {dot.label}: {dot.words or labelled(plot.metric, dot.y)}"
        parts.append(group.marker(x, y, tag("title", words)))
    drawing = axes.svg(parts, f"{plot.title}. {'. '.join(_told(plot))}")
    return figure(plot.title, "", legend, drawing, "chart scatter")


def _labels(placed: Sequence[tuple[DotGroup, Dot, tuple[float, float]]]) -> Iterator[Html]:
    """The labels of the points beside which neither points nor other labels stand."""
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for *_, (x, y) in placed]
    for group, dot, (x, y) in placed:
        # As they are written: rounded afterwards, labels that just fit would meet.
        beside = [(round(x + right, 1), round(y + down, 1), to) for right, down, to in BESIDE]
        free = (place for place in beside if _free(_box(dot.label, *place), taken))
        if (place := next(free, None)) is not None:
            taken.append(_box(dot.label, *place))
            yield label(dot.label, place[0], place[1], anchor=place[2], look=group.look)


def _box(words: str, x: float, y: float, anchor: str) -> Box:
    """The room that a label takes whose baseline begins, ends or has its middle at a place."""
    width = LETTER * len(words)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y - 0.75 * LINE, left + width, y + 0.25 * LINE


def _free(box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    inside = left >= LEFT and right <= WIDTH and top >= 0 and bottom <= HEIGHT - BOTTOM
    return inside and not any(
        left < r and right > lo and top < b and bottom > t for lo, t, r, b in taken
    )


def _told(plot: Scatter) -> Iterator[str]:
    for group in plot.groups:
        dots = (f"{d.label} {number(d.x)}, {labelled(plot.metric, d.y)}" for d in group.dots)
        yield f"{group.label}: {'; '.join(dots)}"
