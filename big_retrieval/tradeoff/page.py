"""Measures, and writes the numbers as tradeoff.json, tradeoff.md and tradeoff.html."""

import base64
import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.report.html import Html, document, tag
from big_retrieval.report.numbers import is_fraction, labelled, number
from big_retrieval.runtime import building
from big_retrieval.tradeoff import measure
from big_retrieval.tradeoff.measure import TradeoffOptions
from big_retrieval.tradeoff.systems import BM25

Report = Mapping[str, Any]
WORK = "work"  # in the folder, while it is measured
_OWN_CSS = ".plot img { max-width: 100%; background: #ffffff; border-radius: 4px; }"
_PLOTS = (
    ("search_ms", "Search alone", "milliseconds per query, search alone"),
    ("latency_ms", "Encoding of the query and search", "milliseconds per query, all of it"),
)
_MARKERS = "osD^"
# Deterministic pages, and no formulas in names with dollar signs.
_STYLE: Any = {"svg.hashsalt": "big_retrieval", "svg.fonttype": "none", "text.parse_math": False}


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
            (plot(report, *options) for options in _PLOTS),
            tag("h2", "All settings"),
            tag("div", tag("table", tag("thead", names), tag("tbody", cells)), class_="scroll"),
        ),
        css=_OWN_CSS,
    )


def plot(report: Report, key: str, title: str, axis: str) -> Html:
    """Draws quality against time, and describes every point in the alternative text.

    Args:
      key: "search_ms", whose mean is shown, or "latency_ms".
      title: of the figure.
      axis: label of the axis of times.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, PercentFormatter

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot(xscale="log", xlabel=axis, ylabel=report["metric"])
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        if is_fraction(report["metric"]):
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        words = _draw_points(axes, report, key)
        axes.legend(fontsize=8)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    uri = f"data:image/svg+xml;base64,{base64.b64encode(stream.getvalue()).decode()}"
    image = tag("img", src=uri, alt=f"{title}. {'; '.join(words)}")
    return tag("figure", tag("figcaption", tag("b", title)), image, class_="plot")


def _draw_points(axes: Any, report: Report, key: str) -> list[str]:
    """Draws the points and describes them: colors tell gates of documents apart, markers models."""
    models, metric, words = _models(report), report["metric"], []
    gates = list(dict.fromkeys(point["document"] for point in report["points"]))
    groups: dict[tuple[str, str], list[Any]] = {}
    for point in report["points"]:
        groups.setdefault((point["model"], point["document"]), []).append(point)
    for (model, gate), points in groups.items():
        name = _group_name(model, gate, len(models))
        color, marker = f"C{gates.index(gate)}", _MARKERS[models.index(model) % len(_MARKERS)]
        times = [p[key]["mean"] if isinstance(p[key], Mapping) else p[key] for p in points]
        values = [point["metrics"][metric] for point in points]
        axes.plot(times, values, linestyle="", marker=marker, color=color, label=name)
        curve = [i for i, point in enumerate(points) if point["query"] != "bag"]
        axes.plot([times[i] for i in curve], [values[i] for i in curve], color=color)
        for point, x, y in zip(points, times, values, strict=True):
            label = point["query"] if point["lexical"] else point["model"]
            axes.annotate(label, (x, y), (5, 4), textcoords="offset points", fontsize=8)
            words.append(f"{name}, {label}: {number(x)} ms, {metric} {labelled(metric, y)}")
    return words


def _group_name(model: str, gate: str, models: int) -> str:
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
