"""Measures, and writes the numbers as tradeoff.json, tradeoff.md and tradeoff.html."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.report.html import document, tag
from big_retrieval.report.numbers import labelled, number
from big_retrieval.report.scatter import Dot, DotGroup, Scatter, draw
from big_retrieval.runtime import building
from big_retrieval.tradeoff import measure
from big_retrieval.tradeoff.measure import TradeoffOptions
from big_retrieval.tradeoff.systems import BM25

Report = Mapping[str, Any]
WORK = "work"  # in the folder, while it is measured
_OWN_CSS = """
.scatter { max-width: 900px; margin-bottom: 30px; }
.scatter svg text {
  font-size: 11.5px; paint-order: stroke; stroke: var(--back); stroke-width: 3px;
  stroke-linejoin: round;
}
.scatter .legend svg { width: 26px; height: 12px; }
"""
_PLOTS = (
    ("Search alone", "search_ms", "milliseconds per query, search alone"),
    ("Encoding of the query and search", "latency_ms", "milliseconds per query, all of it"),
)


def make(options: TradeoffOptions, out: Path) -> None:
    """Measures, and writes the three files into a new folder.

    Args:
      options: what to measure.
      out: the folder; it appears when it is complete.

    Raises:
      UserError: what `measure` raises, or the folder is not empty.
    """
    evaluators = measure.check(options)
    partial = building.begin(out)
    try:
        (partial / WORK).mkdir()
        report = measure.measure(options, evaluators, partial / WORK)
        shutil.rmtree(partial / WORK)
        write(report, partial)
        building.give_name(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # indexes can be large
        raise


def write(report: Report, folder: Path) -> None:
    """Writes the three files.

    Args:
      report: from `measure.measure`.
      folder: takes the files.
    """
    write_bytes(folder / "tradeoff.json", to_json(report))
    write_bytes(folder / "tradeoff.md", markdown(report).encode())
    write_bytes(folder / "tradeoff.html", page(report).encode())


def markdown(report: Report) -> str:
    """The table of all settings, and the machine that it was measured on."""
    head, rows = table(report)
    lines = [f"# {_title(report)}", "", "\n\n".join(_notes(report)), ""]
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def page(report: Report) -> str:
    """The plots and the table as one page that needs no other file."""
    head, rows = table(report)
    words = head.index("documents") + 1  # columns of names; behind them are numbers
    cells = [
        tag("tr", (tag("td", x, class_="n" if i >= words else "k") for i, x in enumerate(row)))
        for row in rows
    ]
    names = tag(
        "tr", (tag("th", x, class_="n" if i >= words else None) for i, x in enumerate(head))
    )
    return document(
        _title(report),
        tag("header", tag("h1", _title(report))),
        tag(
            "main",
            (tag("p", line) for line in _notes(report)),
            (draw(plot) for plot in plots(report)),
            tag("h2", "All settings"),
            tag("div", tag("table", tag("thead", names), tag("tbody", cells)), class_="scroll"),
        ),
        css=_OWN_CSS,
    )


def plots(report: Report) -> list[Scatter]:
    """Quality against the time of the search alone, and of the whole query."""
    return [
        Scatter(title, axis, report["metric"], groups(report, key)) for title, key, axis in _PLOTS
    ]


def groups(report: Report, key: str) -> list[DotGroup]:
    """A group for each model and gate of documents; colours tell gates apart, markers models.

    Args:
      report: the numbers.
      key: "search_ms", whose mean is shown, or "latency_ms".
    """
    models = _models(report)
    gates = list(dict.fromkeys(point["document"] for point in report["points"]))
    out: dict[tuple[str, str], list[Dot]] = {}
    for point in report["points"]:
        taken = point[key]["mean"] if isinstance(point[key], Mapping) else point[key]
        value = point["metrics"][report["metric"]]
        words = f"{number(taken)} ms, {report['metric']} {labelled(report['metric'], value)}"
        label = point["query"] if point["lexical"] else point["model"]
        dot = Dot(taken, value, label, words, joined=point["query"] != "bag")
        out.setdefault((point["model"], point["document"]), []).append(dot)
    return [
        DotGroup(_named(model, gate, len(models)), dots, gates.index(gate), models.index(model))
        for (model, gate), dots in out.items()
    ]


def _named(model: str, gate: str, models: int) -> str:
    """A group of points in words."""
    told = {"binary": "documents: bags of words", "all": "documents: all terms"}
    told |= {"exact": "dense", BM25: "weights of words"}
    words = told.get(gate, f"documents: {gate} terms")
    return f"{model}, {words}" if models > 1 else words


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and a row of texts for each setting."""
    columns: list[tuple[str, Callable[[Any], str]]] = []
    if len(_models(report)) > 1:
        columns.append(("model", lambda p: p["model"].replace("|", "/")))
    columns += [("queries", lambda p: p["query"]), ("documents", lambda p: p["document"])]
    for name in report["metrics"]:
        columns.append((name, lambda p, name=name: labelled(name, p["metrics"][name])))
    for name in ("mean", "p50", "p95"):
        columns.append((f"search {name}, ms", lambda p, name=name: number(p["search_ms"][name], 3)))
    columns += [
        ("encoding, ms", lambda p: number(p["encoding_ms"], 3)),
        ("together, ms", lambda p: number(p["latency_ms"], 3)),
        ("numbers a query", lambda p: f"{p['query_entries']:,.1f}"),
        ("numbers a document", lambda p: f"{p['document_entries']:,.1f}"),
        ("index, MiB", lambda p: f"{p['index_bytes'] / 2**20:,.2f}"),
    ]
    rows = [[make(point) for _, make in columns] for point in report["points"]]
    return [name for name, _ in columns], rows


def _models(report: Report) -> list[str]:
    """The models' names in the order of the points; JSON sorts keys."""
    return list(dict.fromkeys(point["model"] for point in report["points"]))


def _title(report: Report) -> str:
    models = ", ".join(_models(report))
    return f"{report['metric']} of {report['evaluator']} against latency: {models}"


def _notes(report: Report) -> Sequence[str]:
    """What was measured, and on what."""
    on = report["machine"]
    device = "" if on["device"] == "cpu" else f"; encoding and dense search on {on['device']}"
    return (
        f"{report['queries']:,} queries against {report['documents']:,} documents, the best "
        f"{min(report['depth'], report['documents']):,} for each. Quality is of all queries; what "
        f"an index does not find counts as not found. Times are of {report['timed']:,} queries, "
        f"one at a time on one thread, each the median of {report['rounds']} interleaved rounds. "
        "Encoding is of a batch of one; of bags of words it is their tokenising.",
        f"{on['cpu']}, {on['cores']} cores{device}. {on['platform']}, Python {on['python']}, numpy "
        f"{on['numpy']}, jax {on['jax']}.",
    )
