"""Accuracy by class and most frequent confusions of a zero-shot classifier."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.html import Html, cell, html_table, tag
from big_retrieval.report.numbers import number
from big_retrieval.report.results import chip

FREQUENT = 10  # listed confusions
WORST = 12  # listed classes; further classes are folded

File = dict[str, Any]


def confusions(files: Sequence[File]) -> Html | None:
    """Builds accuracies of classes and frequent confusions from the example files of the runs."""
    parts = []
    for index, file in enumerate(files):
        if "classes" not in file:
            continue
        label = tag("p", chip(index), class_="facts") if len(files) == 2 else None
        body = tag("div", _accuracies(file), _frequent(file), class_="columns")
        parts.append(tag("div", label, body))
    return tag("div", parts) if parts else None


def _accuracies(file: File) -> Html:
    correct, totals = file["right_of_class"], file["images_of_class"]
    shares = [(correct[i] / total, i) for i, total in enumerate(totals) if total]
    rows = []
    for _, i in sorted(shares):
        percent = f"{100 * correct[i] / totals[i]:.1f}"
        images = f"{number(correct[i])} of {number(totals[i])}"
        rows.append([tag("bdi", file["classes"][i]), cell(percent, "n bar", percent), images])
    heads, more, none = ["class", "correct, %", "images"], None, None
    if rows[WORST:]:
        summary = tag("summary", f"{len(rows) - WORST:,} more classes")
        more = tag("details", summary, html_table(heads, rows[WORST:], (1, 2)))
    if empty := len(totals) - len(rows):
        none = tag("p", f"{empty:,} class(es) without an image.", class_="note")
    head = tag("h5", "Accuracy by class, worst first")
    return tag("div", head, html_table(heads, rows[:WORST], (1, 2)), more, none)


def _frequent(file: File) -> Html:
    names = file["classes"]
    pairs = sorted(file["confusions"], key=lambda row: (-row[2], row[0], row[1]))[:FREQUENT]
    if not pairs:
        return tag("div", tag("h5", "Confusions"), tag("p", "None.", class_="empty"))
    rows = [[tag("bdi", names[a]), tag("bdi", names[b]), number(n)] for a, b, n in pairs]
    body = html_table(["class", "predicted", "images"], rows, (2,))
    return tag("div", tag("h5", "Most frequent confusions"), body)
