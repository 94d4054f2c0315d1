"""Which classes a zero-shot classifier gets right, and which it takes for which."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.html import Html, cell, table, tag
from big_retrieval.report.numbers import number
from big_retrieval.report.results import chip

FREQUENT = 10  # listed confusions
WORST = 12  # listed classes; further classes are folded

File = dict[str, Any]


def confusions(files: Sequence[File]) -> Html | None:
    """Builds the accuracy of each class and the most frequent confusions.

    Args:
      files: example files of one or two runs; {} for a run without a file.
    """
    parts = []
    for place, file in enumerate(files):
        if "classes" not in file:
            continue
        label = tag("p", chip(place), class_="facts") if len(files) == 2 else None
        body = tag("div", _accuracies(file), _frequent(file), class_="columns")
        parts.append(tag("div", label, body))
    return tag("div", parts) if parts else None


def _accuracies(file: File) -> Html:
    counts = list(zip(file["right_of_class"], file["images_of_class"], strict=True))
    order = sorted(
        (i for i, (_, total) in enumerate(counts) if total),
        key=lambda i: (counts[i][0] / counts[i][1], i),
    )
    more = none = None
    if remaining := order[WORST:]:
        summary = tag("summary", f"{len(remaining):,} more classes")
        more = tag("details", summary, _class_table(file, remaining))
    if empty := len(counts) - len(order):
        none = tag("p", f"{empty:,} class(es) without an image.", class_="note")
    head = tag("h5", "Accuracy by class, worst first")
    return tag("div", head, _class_table(file, order[:WORST]), more, none)


def _class_table(file: File, classes: Sequence[int]) -> Html:
    rows = []
    for i in classes:
        right, total = file["right_of_class"][i], file["images_of_class"][i]
        share = f"{100 * right / total:.1f}"
        images = f"{number(right)} of {number(total)}"
        rows.append([tag("bdi", file["classes"][i]), cell(share, "n bar", share), images])
    return table(["class", "right, %", "images"], rows, (1, 2))


def _frequent(file: File) -> Html:
    names = file["classes"]
    pairs = sorted(file["confusions"], key=lambda row: (-row[2], row[0], row[1]))[:FREQUENT]
    if not pairs:
        return tag("div", tag("h5", "Confusions"), tag("p", "None.", class_="empty"))
    rows = [[tag("bdi", names[a]), tag("bdi", names[b]), number(n)] for a, b, n in pairs]
    whole = table(["is", "taken for", "images"], rows, (2,))
    return tag("div", tag("h5", "Most frequent confusions"), whole)
