"""Histograms of the distances of pairs and of all others, as `Geometry` measures them."""

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
    """Builds a histogram for each run that has distances, on the same axes; None for no run.

    Args:
      files: example files of one or two runs; {} for a run without a file.
    """
    known = {i: file["distances"] for i, file in enumerate(files) if "distances" in file}
    if not known:
        return None
    ends = [edge for found in known.values() for edge in (found["edges"][0], found["edges"][-1])]
    peaks = (_share(found, kind) for found in known.values() for kind, *_ in KINDS)
    axes = Axes(WIDTH, HEIGHT, MARGINS, ticks(min(ends), max(ends)), ticks(0, max(map(max, peaks))))
    drawn = (
        tag("div", tag("p", chip(i), class_="facts") if len(files) == 2 else None, _draw(axes, d))
        for i, d in known.items()
    )
    return tag("div", drawn, class_="charts")


def _share(found: File, kind: str) -> list[float]:
    counts = found[kind]
    total = max(sum(counts), 1)
    return [count / total for count in counts]


def _draw(axes: Axes, found: File) -> Html:
    parts = axes.grid("distance", "accuracy")
    edges, legend = found["edges"], []
    for kind, name, look in KINDS:
        points = [(edges[0], 0.0)]
        for left, right, share in zip(edges, edges[1:], _share(found, kind), strict=False):
            points += [(left, share), (right, share)]
        points.append((edges[-1], 0.0))
        way = "L".join("{} {}".format(*map(at, axes.place(x, y))) for x, y in points)
        parts.append(tag("path", d=f"M{way}", class_=f"{look} line"))
        mark = tag("path", d="M2 6L24 6", class_=look)
        legend.append((mark, f"{name}, {sum(found[kind]):,}"))
    words = "Histogram of the distances of pairs and of all others; means are among the metrics."
    return figure("Distances", "share of each kind", legend, axes.svg(parts, words))
