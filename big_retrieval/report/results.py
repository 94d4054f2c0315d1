"""Tables of the final metrics: a row per direction, a column per metric, runs below each other."""

from collections.abc import Sequence
from typing import Any

from big_retrieval.report.curves import direction_words, words
from big_retrieval.report.html import Html, cell, html_table, tag
from big_retrieval.report.numbers import (
    difference,
    is_fraction,
    is_number,
    labelled,
    metric,
    natural,
    smaller_is_better,
)
from big_retrieval.report.read import RunFiles

SHOWN = 12  # tables that are not folded
MOST_ROWS = 40  # a longer table of training is folded
NOT_RESULTS = ("steps", "evaluated_step", "seconds", "devices", "parameter_count", "resumed_from")
ORDER = {"R": 0, "R-precision": 1, "MRR@10": 2, "nDCG@10": 3, "mean_rank": 4, "median_rank": 5}
Final = dict[str, Any]  # metric -> last value


def results_section(runs: Sequence[RunFiles]) -> Html:
    """Builds the tables of every evaluator, then the last values of training."""
    finals = [run.final for run in runs]
    names = sorted({name for final in finals for name in final}, key=natural)
    groups: dict[str, dict[str, set[str]]] = {}  # metrics by table and row
    for name in names:
        *path, last = name.split("/")
        depth = 1 if len(path) < 3 else 2
        if path:
            rows = groups.setdefault("/".join(path[:depth]), {})
            rows.setdefault("/".join(path[depth:]), set()).add(last)
    tables = [_metrics_table(title, rows, finals) for title, rows in sorted(groups.items())]
    parts: list[Any] = []
    if not tables:
        parts.append(tag("p", "No evaluator has run yet.", class_="empty"))
    if unfinished := [run.name for run in runs if not run.results]:
        note = f"{' and '.join(unfinished)}: not finished, so these are the last logged values."
        parts.append(tag("p", note, class_="note"))
    parts.append(tag("div", tables[:SHOWN], _training(finals, names), class_="columns"))
    if tables[SHOWN:]:
        more = tag("summary", f"{len(tables) - SHOWN:,} more tables")
        parts.append(tag("details", more, tables[SHOWN:]))
    return tag("div", parts, (_evaluated_again(run) for run in runs if run.evaluation))


def chip(index: int) -> Html:
    """Builds the mark of one of two runs, A or B."""
    return tag("span", "AB"[index], class_=f"chip r{index}")


def best(name: str, value: Any, other: Any) -> str:
    """Returns the additional style class for a value that is better than the other run's."""
    if not (is_number(value) and is_number(other)):
        return ""
    return " better" if (value < other if smaller_is_better(name) else value > other) else ""


def _metrics_table(title: str, rows: dict[str, set[str]], finals: Sequence[Final]) -> Html:
    def order(name: str) -> Any:
        return ORDER.get("R" if name.startswith("R@") else name, len(ORDER)), natural(name)

    columns = sorted(set.union(*rows.values()), key=order)
    fields = "fields" if title.startswith("ranking/") else "direction"
    names = [fields if "/" in title else "evaluator", *(["run"] if len(finals) == 2 else [])]
    heads = [words(f"/{column}") + (", %" if is_fraction(column) else "") for column in columns]
    body = []
    for row in sorted(rows, key=natural):
        keys = ["/".join(filter(None, (title, row, column))) for column in columns]
        body += _rows(tag("bdi", direction_words(row)), keys, finals)
    columns_of_numbers = range(len(names), len(names) + len(heads))
    content = html_table([*names, *heads], body, columns_of_numbers)
    return tag("div", tag("h3", tag("bdi", title)), content, class_="block")


def _rows(name: Html, keys: Sequence[str], finals: Sequence[Final]) -> list[Any]:
    """Builds one row of one run, or three rows: A, B and the difference."""
    if len(finals) == 1:
        return [[name, *(metric(key, finals[0].get(key)) for key in keys)]]
    out = []
    for i, (final, other) in enumerate(zip(finals, reversed(finals), strict=True)):
        cells = (
            cell(metric(key, final.get(key)), f"n{best(key, final.get(key), other.get(key))}")
            for key in keys
        )
        head = tag("th", name, scope="row", rowspan=3) if i == 0 else None
        out.append(tag("tr", head, tag("td", chip(i)), cells))
    changes = (cell(difference(key, *(f.get(key) for f in finals)), "n") for key in keys)
    return [*out, tag("tr", cell("B − A", "k"), changes, class_="change")]


def _training(finals: Sequence[Final], names: Sequence[str]) -> Html | None:
    rows = [name for name in names if "/" not in name and name not in NOT_RESULTS]
    if not rows:
        return None
    two = len(finals) == 2
    heads = ["metric", *([chip(0), chip(1), "B − A"] if two else ["last value"])]
    body = []
    for name in rows:
        values = [final.get(name) for final in finals]
        change = [cell(difference(name, *values), "n change")] if two else []
        body.append([tag("bdi", words(name)), *(labelled(name, x) for x in values), *change])
    content = html_table(heads, body, range(1, len(heads)))
    if len(rows) > MOST_ROWS:
        return tag("details", tag("summary", f"Training: {len(rows):,} numbers"), content)
    return tag("div", tag("h3", "Training"), content, class_="block")


def _evaluated_again(run: RunFiles) -> Html:
    """Builds a table of the metrics of `big-retrieval evaluate` that differ from the run's."""
    final, again = run.final, {k: v for k, v in run.evaluation.items() if is_number(v)}
    rows = [
        [tag("bdi", name), labelled(name, final.get(name)), labelled(name, value)]
        for name, value in sorted(again.items())
        if final.get(name) != value
    ]
    label = f"{run.name}: evaluated again from checkpoint {run.evaluation['checkpoint']}"
    summary = f"{label}: {len(rows):,} of {len(again):,} numbers differ"
    if not rows:
        return tag("p", summary, class_="note")
    content = html_table(["metric", "of the run", "again"], rows, (1, 2))
    return tag("details", tag("summary", summary), content)
