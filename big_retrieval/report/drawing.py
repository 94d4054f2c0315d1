"""Axes with a grid, and a figure with its legend, as SVG, for line charts and histograms.

Colors come from the style sheet, so that a figure fits light and dark screens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from big_retrieval.report.html import Child, Html, tag
from big_retrieval.report.numbers import labelled, short

LETTERS = 34  # width of a tick label in pixels


@dataclass(frozen=True)
class Axes:
    """Drawing with two axes, in pixels; the axes end at their first and last ticks."""

    width: int
    height: int
    margins: tuple[int, int, int, int]  # left, right, top, bottom
    x: Sequence[float]  # ticks, ascending
    y: Sequence[float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Returns the pixel of a point; values beyond the y axis are drawn at its end."""
        left, right, top, bottom = self.margins
        low, high = self.x[0], self.x[-1]
        across = (x - low) / (high - low)
        up = (min(max(y, self.y[0]), self.y[-1]) - self.y[0]) / (self.y[-1] - self.y[0])
        return (
            left + across * (self.width - left - right),
            self.height - bottom - up * (self.height - top - bottom),
        )

    def grid(self, x_name: str, metric: str) -> list[Html]:
        """Draws lines and labels at the ticks; `metric` determines the unit of the y axis."""
        left, right, _, bottom = self.margins
        percent = labelled(metric, 0.5).endswith("%")
        end, base = self.width - right, self.height - bottom
        parts = [label(x_name, self.width - 4, self.height - 9, anchor="end")]
        for value in self.y:
            y = self.place(self.x[0], value)[1]
            text = f"{short(round(100 * value, 9))}%" if percent else short(value)
            parts.append(tag("line", x1=left, x2=end, y1=at(y), y2=at(y), class_="grid"))
            parts.append(label(text, left - 6, y + 3.5, anchor="end"))
        pixels = [self.place(value, self.y[0])[0] for value in self.x]
        for index, (value, x) in enumerate(zip(self.x, pixels, strict=True)):
            parts.append(tag("line", x1=at(x), x2=at(x), y1=base, y2=base + 4, class_="grid"))
            crowded = index == len(pixels) - 2 and pixels[-1] - x < LETTERS
            if not crowded:
                parts.append(label(short(value), x, base + 17, anchor="middle"))
        return parts

    def svg(self, parts: Iterable[Child], description: str) -> Html:
        """Builds the drawing; `description` is its alternative text."""
        view = f"0 0 {self.width} {self.height}"
        return tag("svg", parts, viewBox=view, role="img", aria_label=description)


def figure(title: str, note: str, legend: Sequence[tuple[Html, str]], drawing: Html) -> Html:
    """Builds a figure with a note below the title and a legend of (26 x 12 pixel mark, name)."""
    small = {"viewBox": "0 0 26 12", "width": 26, "height": 12, "aria_hidden": "true"}
    entries = [tag("li", tag("svg", mark, **small), tag("bdi", name)) for mark, name in legend]
    caption = tag("figcaption", tag("b", title), tag("span", note, class_="note") if note else None)
    listed = tag("ul", entries, class_="legend") if entries else None
    return tag("figure", caption, listed, drawing, class_="chart")


def label(text: str, x: float, y: float, *, anchor: str = "start", look: str = "") -> Html:
    """Draws a text at a pixel."""
    return tag("text", text, x=at(x), y=at(y), text_anchor=anchor, class_=look or None)


def at(x: float) -> str:
    """Formats a coordinate to a tenth of a pixel."""
    return f"{x:.1f}".removesuffix(".0")


def ticks(low: float, high: float, count: int = 5, *, integers: bool = False) -> list[float]:
    """Returns round numbers in and around [low, high]: 1, 2, 2.5 or 5 times a power of ten apart.

    Returns about `count` numbers, at least two, ascending; the first is <= low and the last >=
    high. `integers` returns integers only.
    """
    if not high - low > 1e-300 * count:  # a smaller step has no logarithm
        room = abs(low) / 2 or 1.0
        low, high = (low - room if low else 0.0), high + room
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= raw * 0.999)
    step = math.ceil(step) if integers else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]
