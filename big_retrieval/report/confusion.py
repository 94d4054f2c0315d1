"""Which classes a zero-shot classifier gets right, and which it takes for which."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.html import Html, cell, table, tag
from big_retrieval.report.numbers import number
from big_retrieval.report.results import chip

MATRIX = 12  # classes up to which the whole matrix is shown
FREQUENT = 10  # confusions that are listed
WORST = 10  # classes that are listed where there are many

File = dict[str, Any]


def confusions(files: Sequence[File]) -> Html | None:
    """Accuracy of each class, the most frequent confusions, and for few classes the whole matrix.

    Args:
      files: of one or two runs; empty where a run has none.
    """
    parts = []
    for place, file in enumerate(files):
        if "classes" not in file:
            continue
        label = tag("p", chip(place), class_="facts") if len(files) == 2 else None
        few = len(file["classes"]) <= MATRIX and file.get("all_confusions")
        body = [_matrix(file) if few else None, _accuracies(file), _frequent(file)]
        parts.append(tag("div", label, tag("div", body, class_="columns")))
    return tag("div", parts) if parts else None


def _matrix(file: File) -> Html:
    names, total = [tag("bdi", name) for name in file["classes"]], file["images_of_class"]
    counts = {(a, b): n for a, b, n in file["confusions"]}
    counts |= {(i, i): n for i, n in enumerate(file["right_of_class"])}
    rows = []
    for a, name in enumerate(names):
        row: list[Any] = [name]
        for b in range(len(names)):
            count = counts.get((a, b), 0)
            share = f"{round(100 * count / total[a]) if total[a] else 0}"
            row.append(cell(count or "·", "n hit" if a == b else "n miss", share))
        rows.append(row)
    heads = ["is ↓ taken for →", *names]
    whole = table(heads, rows, range(1, len(heads)), "matrix")
    return tag("div", tag("h5", "Images by class and answer"), whole, class_="wide")


def _accuracies(file: File) -> Html:
    counts = list(zip(file["right_of_class"], file["images_of_class"], strict=True))
    order = sorted(
        (i for i, (_, total) in enumerate(counts) if total),
        key=lambda i: (counts[i][0] / counts[i][1], i),
    )
    empty = len(counts) - len(order)
    shown = order if len(order) <= MATRIX else order[:WORST]
    head = "Accuracy by class" if len(shown) == len(order) else f"The {WORST} worst classes"
    rest, more = order[len(shown) :], None
    if rest:
        summary = tag("summary", f"{number(len(rest))} more classes, worst first")
        more = tag("details", summary, _class_table(file, rest))
    none = tag("p", f"{number(empty)} class(es) without an image.", class_="note")
    return tag("div", tag("h5", head), _class_table(file, shown), more, none if empty else None)


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
