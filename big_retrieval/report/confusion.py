"""Which classes a zero-shot classifier gets right, and which it takes for which."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import number
from big_retrieval.report.results import chip, scroll

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
        if not _fits(file):
            continue
        label = tag("p", chip(place), class_="facts") if len(files) == 2 else None
        names = file["classes"]
        body = [_matrix(file)] if len(names) <= MATRIX and file.get("all_confusions") else []
        body += [_accuracies(file), _frequent(file)]
        parts.append(tag("div", label, tag("div", body, class_="columns")))
    return tag("div", parts) if parts else None


def _fits(file: File) -> bool:
    """Whether a file has what is needed, with lengths that agree."""
    keys = ("classes", "images_of_class", "right_of_class", "confusions")
    if not all(isinstance(file.get(key), list) for key in keys):
        return False
    count = len(file["classes"])
    whole = all(
        isinstance(n, int) for key in keys[1:3] for n in file[key] if len(file[key]) == count
    )
    pairs = all(
        isinstance(row, list)
        and len(row) == 3
        and all(isinstance(n, int) for n in row)
        and min(row[:2]) >= 0
        and max(row[:2]) < count
        for row in file["confusions"]
    )
    return whole and pairs and len(file[keys[1]]) == len(file[keys[2]]) == count


def _matrix(file: File) -> Html:
    names, total = file["classes"], file["images_of_class"]
    cells = {(a, b): n for a, b, n in file["confusions"]}
    cells |= {(i, i): n for i, n in enumerate(file["right_of_class"])}
    heads = [tag("th", "is ↓ taken for →", scope="col")]
    heads += [tag("th", tag("bdi", name), scope="col", class_="n name") for name in names]
    rows = []
    for a, name in enumerate(names):
        row = []
        for b in range(len(names)):
            count = cells.get((a, b), 0)
            share = round(100 * count / total[a]) if total[a] else 0
            kind = "n hit" if a == b else "n miss"
            row.append(tag("td", count or "·", class_=kind, style=f"--s:{share}%"))
        rows.append(tag("tr", tag("th", tag("bdi", name), scope="row"), row))
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="matrix")
    return tag("div", tag("h5", "Images by class and answer"), scroll(table), class_="wide")


def _accuracies(file: File) -> Html:
    counts = list(zip(file["right_of_class"], file["images_of_class"], strict=True))
    order = sorted(
        (i for i, (_, total) in enumerate(counts) if total),
        key=lambda i: (counts[i][0] / counts[i][1], i),
    )
    empty = len(counts) - len(order)
    shown = order if len(order) <= MATRIX else order[:WORST]
    head = "Accuracy by class" if len(shown) == len(order) else f"The {WORST} worst classes"
    rest = order[len(shown) :]
    more = None
    if rest:
        more = tag(
            "details",
            tag("summary", f"{number(len(rest))} more classes, worst first"),
            _class_table(file, rest),
        )
    none = tag("p", f"{number(empty)} class(es) without an image.", class_="note")
    return tag("div", tag("h5", head), _class_table(file, shown), more, none if empty else None)


def _class_table(file: File, classes: Sequence[int]) -> Html:
    rows = []
    for i in classes:
        right, total = file["right_of_class"][i], file["images_of_class"][i]
        share = f"{100 * right / total:.1f}"
        rows.append(
            tag(
                "tr",
                tag("th", tag("bdi", file["classes"][i]), scope="row"),
                tag("td", share, class_="n bar", style=f"--s:{share}%"),
                tag("td", f"{number(right)} of {number(total)}", class_="n"),
            )
        )
    names = (("class", ""), ("right, %", "n"), ("images", "n"))
    heads = [tag("th", name, scope="col", class_=kind or None) for name, kind in names]
    return scroll(tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows)))


def _frequent(file: File) -> Html:
    names = file["classes"]
    pairs = sorted(file["confusions"], key=lambda row: (-row[2], row[0], row[1]))[:FREQUENT]
    rows = [
        tag(
            "tr",
            tag("th", tag("bdi", names[a]), scope="row"),
            tag("td", tag("bdi", names[b])),
            tag("td", number(count), class_="n"),
        )
        for a, b, count in pairs
    ]
    if not rows:
        return tag("div", tag("h5", "Confusions"), tag("p", "None.", class_="empty"))
    names_ = (("is", ""), ("taken for", ""), ("images", "n"))
    heads = [tag("th", name, scope="col", class_=kind or None) for name, kind in names_]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
    return tag("div", tag("h5", "Most frequent confusions"), scroll(table))
