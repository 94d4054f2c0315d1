"""The final numbers as tables: a row per direction, a column per metric, runs below each other."""

import math
from collections.abc import Sequence
from typing import Any

from big_retrieval.report.curves import way, words
from big_retrieval.report.html import Html, tag
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
NOT_RESULTS = ("steps", "seconds", "devices", "parameter_count", "resumed_from")
FULL = {"R": 0, "mean_rank": 1, "median_rank": 2}


def scroll(table: Html) -> Html:
    """A table in a container of its own, which scrolls where the screen is narrow."""
    return tag("div", table, class_="scroll", tabindex=0)


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
    two = len(runs) == 2
    kind = "fields" if title.startswith("ranking/") else "direction"
    heads = [tag("th", kind if "/" in title else "evaluator", scope="col")]
    heads += [tag("th", "run", scope="col")] if two else []
    heads += [tag("th", _head(column), scope="col", class_="n") for column in columns]
    body = [_rows(title, row, columns, finals) for row in sorted(rows, key=natural)]
    return tag(
        "div",
        tag("h3", tag("bdi", title)),
        scroll(tag("table", tag("thead", tag("tr", heads)), tag("tbody", body))),
        class_="block",
    )


def _head(column: str) -> str:
    return f"{words(f'/{column}')}, %" if is_fraction(column) else words(f"/{column}")


def _rows(
    title: str, row: str, columns: Sequence[str], finals: Sequence[dict[str, Any]]
) -> list[Html]:
    keys = ["/".join(filter(None, (title, row, column))) for column in columns]
    two = len(finals) == 2
    head = tag("th", tag("bdi", way(row)), scope="row", rowspan=3 if two else None)
    if not two:
        cells = [tag("td", metric(key, finals[0].get(key)), class_="n") for key in keys]
        return [tag("tr", head, cells)]
    out = []
    for number_, final in enumerate(finals):
        other = finals[1 - number_]
        cells = [
            tag(
                "td",
                metric(key, final.get(key)),
                class_="n better" if better(key, final.get(key), other.get(key)) else "n",
            )
            for key in keys
        ]
        out.append(tag("tr", head if number_ == 0 else None, tag("td", chip(number_)), cells))
    changes = [difference(key, finals[0].get(key), finals[1].get(key)) for key in keys]
    cells = [tag("td", change, class_="n") for change in changes]
    out.append(tag("tr", tag("td", "B − A", class_="k"), cells, class_="change"))
    return out


def better(name: str, value: Any, other: Any) -> bool:
    """Whether a value beats the other run's."""
    if not (is_number(value) and is_number(other)) or math.isnan(value) or math.isnan(other):
        return False
    return value < other if smaller_is_better(name) else value > other


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
    heads = [tag("th", "metric", scope="col")]
    for i in range(len(runs)):
        heads.append(tag("th", chip(i) if two else "last value", scope="col", class_="n"))
    heads += [tag("th", "B − A", scope="col", class_="n")] if two else []
    body = []
    for name in rows:
        values = [final.get(name) for final in finals]
        cells = [tag("td", _with_unit(name, value), class_="n") for value in values]
        if two:
            cells.append(tag("td", difference(name, *values), class_="n change"))
        body.append(tag("tr", tag("th", tag("bdi", words(name)), scope="row"), cells))
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", body))
    folded = len(rows) > 40
    block = [tag("h3", "Training"), scroll(table)]
    if folded:
        return tag("details", tag("summary", f"Training: {len(rows):,} numbers"), scroll(table))
    return tag("div", block, class_="block")


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
        tag(
            "tr",
            tag("th", tag("bdi", name), scope="row"),
            tag("td", _with_unit(name, final.get(name)), class_="n"),
            tag("td", _with_unit(name, own[name]), class_="n"),
        )
        for name in differ
    ]
    heads = [tag("th", "metric", scope="col")]
    heads += [tag("th", head, scope="col", class_="n") for head in ("of the run", "again")]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
    summary = f"{where}: {number(len(differ))} of {number(len(own))} numbers differ"
    return tag("details", tag("summary", summary), scroll(table))
