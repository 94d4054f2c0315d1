"""Charts of a report: training first, then every evaluator's metrics by kind."""

from collections.abc import Sequence

from big_retrieval.report.chart import Chart, Series, render_chart
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_fraction, natural
from big_retrieval.report.read import RunFiles

FIRST = (
    "loss", "learning_rate", "accuracy", "logit_scale", "grad_norm", "examples_per_second",
    "data_wait", "mfu",
)  # fmt: skip
TITLES = {
    "loss": "training loss",
    "accuracy": "accuracy in the batch",
    "grad_norm": "gradient norm",
    "data_wait": "time spent waiting for data",
    "mfu": "MFU",
}
FROM_ZERO = ("learning_rate", "examples_per_second", "data_wait", "mfu", "grad_norm")
SHOWN = 12  # unfolded charts, and listed names
ALL_POINTS = 60_000  # of all lines of a page


def words(name: str) -> str:
    """Returns a metric's name as words."""
    return TITLES.get(name, name.rsplit("/", 1)[-1].replace("_", " "))


def direction_words(name: str) -> str:
    """Returns a direction of retrieval as words: image_to_text is image → text."""
    return name.replace("_to_", " → ").replace("_", " ")


def _family(name: str) -> str:
    """Returns the key of the chart of a metric: evaluator, direction and kind of metric."""
    path, _, last = name.rpartition("/")
    if not path:
        return name
    metric = next((k for k in ("rank", "accuracy", "distance") if last.endswith(k)), last)
    return f"{path}/{'R@' if last.startswith('R@') else metric}"


def _title(family: str) -> str:
    path, _, metric = family.rpartition("/")
    if not path:
        return words(family)
    parts = path.split("/")[1:] or [path]  # the metric shows the type of the evaluator
    title = " · ".join(direction_words(segment) for segment in parts)
    return f"{title} · {'recall' if metric == 'R@' else words(f'/{metric}')}"


def make_charts(runs: Sequence[RunFiles]) -> list[Chart]:
    """Returns the charts of one run, or of two together: a color per run, a dash per metric."""
    families: dict[str, list[str]] = {}
    for name in sorted({name for run in runs for name in run.series}, key=natural):
        families.setdefault(_family(name), []).append(name)
    order = {name: position for position, name in enumerate(FIRST)}
    limit = max(24, ALL_POINTS // max(1, sum(len(run.series) for run in runs)))
    charts = []
    for family in sorted(families, key=lambda x: ("/" in x, order.get(x, len(FIRST)), natural(x))):
        names, series = families[family], []
        for run_index, run in enumerate(runs):
            for index, name in enumerate(names):
                if name not in run.series:
                    continue
                label, look = words(name), (index % 6, 0)
                if len(runs) == 2:
                    label = f"{'AB'[run_index]} {label}" if len(names) > 1 else run.name
                    look = run_index, index % 4
                series.append(Series(label, run.series[name], *look))
        zero = is_fraction(names[0]) or family in FROM_ZERO or family.endswith("/rank")
        charts.append(Chart(_title(family), names[0], series, zero, min(300, limit)))
    return charts


def curves_section(runs: Sequence[RunFiles]) -> Html:
    """Builds all charts, or a note if nothing was logged."""
    charts = make_charts(runs)
    if not charts:
        return tag("p", "No step has been logged yet.", class_="empty")
    once = [c for c in charts if "/" in c.metric and all(len(s.points) == 1 for s in c.series)]
    charts = [chart for chart in charts if chart not in once]
    smoothing = folded = note = None
    if any(chart.smoothed for chart in charts):
        text = (
            "Thin lines are logged values; thick lines, and the numbers at their ends, are running "
            "means over a twentieth of the points."
        )
        smoothing = tag("p", text, class_="note")
    if charts[SHOWN:]:
        summary = tag("summary", f"{len(charts) - SHOWN:,} more charts")
        folded = tag(
            "details", summary, tag("div", map(render_chart, charts[SHOWN:]), class_="charts")
        )
    if once:
        names = sorted({chart.title.rsplit(" · ", 1)[0] for chart in once})
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        text = f"Measured once, see the tables: {'; '.join(names[:SHOWN])}{more}."
        note = tag("p", text, class_="note")
    return tag(
        "div",
        smoothing,
        tag("div", map(render_chart, charts[:SHOWN]), class_="charts"),
        folded,
        note,
    )
