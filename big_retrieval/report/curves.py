"""Which charts a report has: training first, then every evaluator's metrics by kind."""

from collections.abc import Sequence

from big_retrieval.report.chart import Chart, Series, draw
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
SHOWN = 12  # charts in sight; the others are behind a fold
ALL_POINTS = 60_000  # of all lines of a page


def words(name: str) -> str:
    """A metric's name as words; those of training have names of their own."""
    return TITLES.get(name, name.rsplit("/", 1)[-1].replace("_", " "))


def way(name: str) -> str:
    """A direction of retrieval as words: image_to_text is image → text."""
    return name.replace("_to_", " → ").replace("_", " ")


def _family(name: str) -> str:
    """What metrics share a chart: those of one evaluator and direction that measure alike."""
    path, _, last = name.rpartition("/")
    if not path:
        return name
    kind = next((k for k in ("rank", "accuracy", "distance") if last.endswith(k)), last)
    return f"{path}/{'R@' if last.startswith('R@') else kind}"


def _title(family: str) -> str:
    path, _, kind = family.rpartition("/")
    if not path:
        return words(family)
    parts = path.split("/")[1:] or [path]  # the kind of the evaluator is seen from the metric
    place = " · ".join(way(part) for part in parts)
    return f"{place} · {'recall' if kind == 'R@' else words(f'/{kind}')}"


def make_charts(runs: Sequence[RunFiles]) -> list[Chart]:
    """The charts of one run, or of two overlaid: colour is the run then, dashes are the metric."""
    families: dict[str, list[str]] = {}
    for name in {name for run in runs for name in run.series}:
        families.setdefault(_family(name), []).append(name)
    known = [name for name in FIRST if name in families]
    plain = sorted(
        (name for name in families if "/" not in name and name not in FIRST), key=natural
    )
    evals = sorted((name for name in families if "/" in name), key=natural)
    each = max(24, ALL_POINTS // max(1, sum(len(run.series) for run in runs)))
    out = []
    for family in (*known, *plain, *evals):
        names = sorted(families[family], key=natural)
        lines = []
        for number, run in enumerate(runs):
            for place, name in enumerate(names):
                if name not in run.series:
                    continue
                last = words(name)
                one = len(runs) == 1
                label = last if one else f"{'AB'[number]} {last}" if len(names) > 1 else run.name
                look = (place % 6, 0) if one else (number, place % 4)
                lines.append(Series(label, run.series[name], *look))
        zero = is_fraction(names[0]) or family in FROM_ZERO or family.endswith("/rank")
        title = _title(family)
        out.append(Chart(title, names[0], lines, from_zero=zero, most_points=min(300, each)))
    return out


def section(runs: Sequence[RunFiles]) -> Html:
    """All charts, or a sentence where nothing was logged."""
    charts = make_charts(runs)
    if not charts:
        return tag("p", "No step has been logged yet.", class_="empty")
    once = [c for c in charts if "/" in c.metric and all(len(s.points) == 1 for s in c.series)]
    charts = [chart for chart in charts if chart not in once]
    shown = tag("div", (draw(chart) for chart in charts[:SHOWN]), class_="charts")
    once_only = None
    if once:
        names = sorted({chart.title.rsplit(" · ", 1)[0] for chart in once})
        more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
        words_ = f"Measured once, so in the tables only: {'; '.join(names[:12])}{more}."
        once_only = tag("p", words_, class_="note")
    if any(chart.smoothed for chart in charts):
        told = (
            "Thin lines are as logged; thick ones, and the numbers at their ends, are running "
            "means over a twentieth of the points."
        )
        shown = tag("div", tag("p", told, class_="note"), shown)
    rest = charts[SHOWN:]
    if not rest:
        return tag("div", shown, once_only)
    folded = tag(
        "details",
        tag("summary", f"{len(rest):,} more charts"),
        tag("div", (draw(chart) for chart in rest), class_="charts"),
    )
    return tag("div", shown, folded, once_only)
