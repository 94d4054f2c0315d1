"""Histograms of distances between positive and negative pairs, as `Geometry` measures them."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.drawing import Axes, at, figure, ticks
from big_retrieval.report.html import Html, tag
from big_retrieval.report.results import chip

WIDTH, HEIGHT = 480, 240
MARGINS = 52, 30, 14, 44
KINDS = (("positives", "pairs", "c0"), ("negatives", "all others", "c1"))

File = dict[str, Any]


def histograms(files: Sequence[File]) -> Html | None:
    """Builds a histogram for each run whose example file has distances, on the same axes."""
    by_run = {i: file["distances"] for i, file in enumerate(files) if "distances" in file}
    if not by_run:
        return None
    ends = [edge for d in by_run.values() for edge in (d["edges"][0], d["edges"][-1])]
    peaks = (max(_shares(d[kind])) for d in by_run.values() for kind, *_ in KINDS)
    axes = Axes(WIDTH, HEIGHT, MARGINS, ticks(min(ends), max(ends)), ticks(0, max(peaks)))
    drawn = (
        tag(
            "div",
            tag("p", chip(i), class_="facts") if len(files) == 2 else None,
            _render_histogram(axes, d),
        )
        for i, d in by_run.items()
    )
    return tag("div", drawn, class_="charts")


def _shares(counts: Sequence[int]) -> list[float]:
    total = max(sum(counts), 1)
    return [count / total for count in counts]


def _render_histogram(axes: Axes, distances: File) -> Html:
    parts = axes.grid("distance", "accuracy")
    edges, legend = distances["edges"], []
    for kind, name, look in KINDS:
        points = [(edges[0], 0.0)]
        for left, right, share in zip(edges, edges[1:], _shares(distances[kind]), strict=False):
            points += [(left, share), (right, share)]
        points.append((edges[-1], 0.0))
        path = "L".join("{} {}".format(*map(at, axes.place(x, y))) for x, y in points)
        parts.append(tag("path", d=f"M{path}", class_=f"{look} line"))
        mark = tag("path", d="M2 6L24 6", class_=look)
        legend.append((mark, f"{name}, {sum(distances[kind]):,}"))
    caption = "Histogram of the distances of pairs and of all others; means are among the metrics."
    return figure("Distances", "share of each kind", legend, axes.svg(parts, caption))
