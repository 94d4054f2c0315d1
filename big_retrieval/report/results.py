"""The final numbers as tables: a row per direction, a column per metric, runs below each other."""

import math
from collections.abc import Sequence
from typing import Any

from big_retrieval.report.curves import way, words
from big_retrieval.report.html import Html, cell, table, tag
from big_retrieval.report.numbers import (
    NONE,
    difference,
    is_fraction,
    is_number,
    metric,
    natural,
    number,
    smaller_is_better,
)
from big_retrieval.report.read import RunFiles

SHOWN = 12  # tables in sight
NOT_RESULTS = ("steps", "evaluated_step", "seconds", "devices", "parameter_count", "resumed_from")
FULL = {"R": 0, "R-precision": 1, "MRR@10": 2, "nDCG@10": 3, "mean_rank": 4, "median_rank": 5}


def section(runs: Sequence[RunFiles]) -> Html:
    """Tables of every evaluator, then the last values of training."""
    finals = [run.final for run in runs]
    names = sorted({name for final in finals for name in final}, key=natural)
    groups: dict[str, dict[str, set[str]]] = {}  # table -> row -> metrics
    for name in names:
        parts = name.split("/")
        if len(parts) >= 4:
            groups.setdefault("/".join(parts[:2]), {}).setdefault("/".join(parts[2:-1]), set()).add(
                parts[-1]
            )
        elif len(parts) > 1:
            groups.setdefault(parts[0], {}).setdefault("/".join(parts[1:-1]), set()).add(parts[-1])
    tables = [_table(title, rows, runs, finals) for title, rows in sorted(groups.items())]
    parts: list[Any] = []
    if not tables:
        parts.append(tag("p", "No evaluator has run yet.", class_="empty"))
    if any(not run.results for run in runs):
        parts.append(tag("p", _unfinished(runs), class_="note"))
    parts.append(tag("div", tables[:SHOWN], _training(runs, finals, names), class_="columns"))
    if tables[SHOWN:]:
        more = tag("summary", f"{len(tables) - SHOWN:,} more tables")
        parts.append(tag("details", more, tables[SHOWN:]))
    parts += [_again(run) for run in runs if run.evaluation]
    return tag("div", parts)


def _unfinished(runs: Sequence[RunFiles]) -> str:
    if len(runs) == 1:
        return "The run has no results.json yet: these are the last logged values."
    names = " and ".join("AB"[i] for i, run in enumerate(runs) if not run.results)
    return f"{names} without results.json yet: its last logged values stand here."


def _column(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    return FULL.get("R" if name.startswith("R@") else name, len(FULL)), natural(name)


def _table(
    title: str,
    rows: dict[str, set[str]],
    runs: Sequence[RunFiles],
    finals: Sequence[dict[str, Any]],
) -> Html:
    columns = sorted({m for metrics in rows.values() for m in metrics}, key=_column)
    kind = "fields" if title.startswith("ranking/") else "direction"
    names = [kind if "/" in title else "evaluator", *(["run"] if len(runs) == 2 else [])]
    heads = [*names, *(_head(column) for column in columns)]
    body = [
        line for row in sorted(rows, key=natural) for line in _rows(title, row, columns, finals)
    ]
    whole = table(heads, body, range(len(names), len(heads)))
    return tag("div", tag("h3", tag("bdi", title)), whole, class_="block")


def _head(column: str) -> str:
    return f"{words(f'/{column}')}, %" if is_fraction(column) else words(f"/{column}")


def _rows(
    title: str, row: str, columns: Sequence[str], finals: Sequence[dict[str, Any]]
) -> list[Any]:
    """One row of one run; of two runs a row each and the difference."""
    keys = ["/".join(filter(None, (title, row, column))) for column in columns]
    name = tag("bdi", way(row))
    if len(finals) == 1:
        return [[name, *(metric(key, finals[0].get(key)) for key in keys)]]
    out = []
    for place, (own, other) in enumerate(zip(finals, reversed(finals), strict=True)):
        cells = (
            cell(metric(key, own.get(key)), f"n{best(key, own.get(key), other.get(key))}")
            for key in keys
        )
        head = tag("th", name, scope="row", rowspan=3) if place == 0 else None
        out.append(tag("tr", head, tag("td", chip(place)), cells))
    changes = (cell(difference(key, *(f.get(key) for f in finals)), "n") for key in keys)
    return [*out, tag("tr", cell("B − A", "k"), changes, class_="change")]


def best(name: str, value: Any, other: Any) -> str:
    """The class of a value that beats the other run's, to be added to its look; else ""."""
    if not (is_number(value) and is_number(other)) or math.isnan(value) or math.isnan(other):
        return ""
    return " better" if (value < other if smaller_is_better(name) else value > other) else ""


def chip(number_: int) -> Html:
    """The mark of a run among two."""
    return tag("span", "AB"[number_], class_=f"chip r{number_}")


def _training(
    runs: Sequence[RunFiles], finals: Sequence[dict[str, Any]], names: Sequence[str]
) -> Html | None:
    rows = [name for name in names if "/" not in name and name not in NOT_RESULTS]
    if not rows:
        return None
    two = len(runs) == 2
    heads = ["metric", *([chip(0), chip(1), "B − A"] if two else ["last value"])]
    body = []
    for name in rows:
        values = [final.get(name) for final in finals]
        cells: list[Any] = [_with_unit(name, value) for value in values]
        if two:
            cells.append(cell(difference(name, *values), "n change"))
        body.append([tag("bdi", words(name)), *cells])
    whole = table(heads, body, range(1, len(heads)))
    if len(rows) > 40:
        return tag("details", tag("summary", f"Training: {len(rows):,} numbers"), whole)
    return tag("div", tag("h3", "Training"), whole, class_="block")


def _with_unit(name: str, value: Any) -> str:
    shown = metric(name, value)
    return f"{shown} %" if is_fraction(name) and shown not in (NONE, "NaN") else shown


def _again(run: RunFiles) -> Html:
    """What `big-retrieval evaluate` found, where it differs from the run's own numbers."""
    final = run.final
    own = {name: value for name, value in run.evaluation.items() if is_number(value)}
    differ = sorted(name for name, value in own.items() if final.get(name) != value)
    where = f"{run.name}: evaluated again from checkpoint {run.evaluation.get('checkpoint', '?')}"
    if not differ:
        return tag("p", f"{where}, with the same {len(own):,} numbers.", class_="note")
    rows = [
        [tag("bdi", name), _with_unit(name, final.get(name)), _with_unit(name, own[name])]
        for name in differ
    ]
    summary = f"{where}: {number(len(differ))} of {number(len(own))} numbers differ"
    numbers = table(["metric", "of the run", "again"], rows, (1, 2))
    return tag("details", tag("summary", summary), numbers)
