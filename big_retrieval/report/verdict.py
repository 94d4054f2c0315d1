"""Head of a report: headline metrics, model, data, length and throughput of the runs."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from big_retrieval.evals.intervals import FEW, wilson_interval
from big_retrieval.report.curves import direction_words, words
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import NONE, difference, duration, labelled, number
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import best, chip
from big_retrieval.report.settings import described

HEADLINES = 12


def verdict_section(runs: Sequence[RunFiles]) -> Html:
    """Builds the headline metrics, then the facts of each run."""
    cards = []
    for i, run in enumerate(runs):
        title = tag("h3", chip(i), tag("bdi", run.name)) if len(runs) == 2 else None
        look = "done" if run.results else "bad" if run.nonfinite else "open"
        line = tag("p", tag("b", status(run)), class_=f"status {look}")
        values = {name: build(run) for name, build in FACTS.items()}
        facts = ((tag("dt", name), tag("dd", value)) for name, value in values.items() if value)
        cards.append(tag("div", title, line, tag("dl", facts), class_="card"))
    return tag("div", _headlines(runs), tag("div", cards, class_="cards"))


def status(run: RunFiles) -> str:
    """Returns the state of the run, and the step at which it stopped."""
    total, last = run.lookup("total_steps"), run.last_step
    if run.results:
        steps, evaluated = run.results["steps"], run.results["evaluated_step"]
        best = f" The metrics are from the best checkpoint, step {number(evaluated)}."
        return f"Finished {number(steps)} steps.{best if evaluated != steps else ''}"
    suffix = f" of {number(total)}" if total is not None else ""
    if run.nonfinite:
        return f"Ended at step {number(run.nonfinite[-1])}{suffix}: a number was not finite."
    if not last:
        return "No step has been logged yet."
    return f"Not finished: step {number(last)}{suffix} is the last one logged."


def _headlines(runs: Sequence[RunFiles]) -> Html | None:
    finals = [run.final for run in runs]
    names = {name for final in finals for name in final if name.count("/") > 1}
    names = {name for name in names if name.endswith(("/R@1", "/accuracy"))}
    order = sorted(names, key=lambda x: (x.split("/")[:2], not _is_search(x, runs[0]), x))
    cards = []
    for name in order[:HEADLINES]:
        values = [final.get(name) for final in finals]
        if len(runs) == 1:
            notes = [initial(name, runs[0]), _interval(name, runs[0])]
            shown = [tag("span", labelled(name, values[0]), class_="big")]
        else:
            notes = [f"B − A {difference(name, *values)}"]
            shown = [
                tag("span", chip(i), labelled(name, value), class_=f"big{best(name, value, other)}")
                for i, (value, other) in enumerate(zip(values, reversed(values), strict=True))
            ]
        shown += [tag("span", note, class_="note") for note in notes if note]
        label = " · ".join(direction_words(segment) for segment in name.split("/")[1:-1])
        title = tag("span", tag("bdi", label), class_="label")
        cards.append(tag("li", title, shown, tag("span", words(name), class_="note")))
    return tag("ul", cards, class_="headlines") if cards else None


def _is_search(name: str, run: RunFiles) -> bool:
    """Returns True for a metric of the direction from queries to documents."""
    evaluator = run.config["evals"].get(name.split("/")[1], {})
    return f"/{evaluator.get('query')}_to_{evaluator.get('document')}/" in name


def initial(name: str, run: RunFiles) -> str:
    """Returns a metric of the initial weights (step 0); "" if it was not measured."""
    step, value = next(iter(run.series.get(name, [])), (None, None))
    return f"before training {labelled(name, value)}" if step == 0 and run.last_step > 0 else ""


def _interval(name: str, run: RunFiles) -> str:
    """Returns the 95% interval of a share of fewer than 1,000 queries or images; "" for others."""
    examples = run.examples.get("/".join(name.split("/")[:2]), {})
    sides = [x for x in examples.get("directions", ()) if f"/{x['name']}/" in name]
    count = sides[0]["queries"] if sides else examples.get("images", 0)
    if not 0 < count < FEW or not 0 <= run.final[name] <= 1:
        return ""
    low, high = (labelled(name, end) for end in wilson_interval(run.final[name], count))
    return f"95% interval {low} to {high} ({number(count)} queries)"


def _model(run: RunFiles) -> str:
    parts = []
    for name, tower in run.config["towers"].items():
        sizes = [f"{key} {tower[key]}" for key in ("depth", "width") if key in tower]
        parts.append(f"{name} {', '.join([tower['type'], *sizes])}")
    count = run.results.get("parameter_count", run.start.get("parameter_count"))
    if count is not None:
        parts.append(f"{number(count)} parameters")
    topology = run.config["topology"]
    name = topology if isinstance(topology, str) else topology["type"]
    return "; ".join([*parts, f"topology {name}"])


def _length(run: RunFiles) -> str:
    steps, batch = run.results.get("steps", run.last_step), run.config["batch_size"]
    parts = [f"{number(steps)} steps", f"batches of {number(batch)}"]
    if records := run.lookup("records"):
        parts.append(f"{number(steps * batch / records, 3)} epochs of {number(records)} records")
    if run.results:
        since = run.results["resumed_from"]
        after = f" since it was resumed at step {number(since)}" if since else ""
        parts.append(f"{duration(run.results['seconds'])}{after}")
    return ", ".join(parts)


def _loss(run: RunFiles) -> str:
    kinds = " + ".join(loss["type"] for loss in run.config["losses"].values())
    points = run.series.get("loss", [])
    ends = [number(value) for _, value in points[:: max(1, len(points) - 1)]]
    return ", ".join(filter(None, [kinds, " → ".join(ends)])) or NONE


def _best(run: RunFiles) -> str:
    name = run.config["best_metric"]
    if not name:
        return ""
    # Step 0, the initial weights of `config.init`, has no checkpoint.
    points = [(s, v) for s, v in run.series.get(name, []) if math.isfinite(v) and s > 0]
    if not points:
        return f"{name}: not measured yet"
    sign = -1 if run.config["best_mode"] == "min" else 1
    step, value = max(points, key=lambda p: (sign * p[1], p[0]))  # the later of equal values
    return f"{name} {labelled(name, value)} at step {number(step)}"


def _throughput(run: RunFiles) -> str:
    """Returns medians: the value of the first step includes compilation."""
    rate, wait = (
        [value for _, value in run.series.get(name, []) if math.isfinite(value)]
        for name in ("examples_per_second", "data_wait")
    )
    if not rate:
        return ""
    waiting = f", waiting for data {labelled('data_wait', median(wait))}" if wait else ""
    return f"{number(median(rate), 3)} examples/s{waiting} (medians)"


# Facts of a run; "" for an unknown value.
FACTS: dict[str, Callable[[RunFiles], str]] = {
    "trained": _model,
    "on": lambda run: described(run.config["data"]),
    "for": _length,
    "loss": _loss,
    "best": _best,
    "throughput": _throughput,
}
