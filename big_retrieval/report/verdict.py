"""The head of a report: what was trained, on what, for how long, and how good it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from big_retrieval.evals.intervals import FEW, wilson_interval
from big_retrieval.report.curves import way, words
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import (
    NONE,
    difference,
    duration,
    is_number,
    labelled,
    number,
    smaller_is_better,
)
from big_retrieval.report.read import MALFORMED, RunFiles, known_facts
from big_retrieval.report.results import best, chip
from big_retrieval.report.settings import described

HEADLINES = 12


def section(runs: Sequence[RunFiles]) -> Html:
    """Headline numbers, then the facts of each run."""
    facts = [
        tag(
            "div",
            tag("h3", chip(i), tag("bdi", run.name)) if len(runs) == 2 else None,
            tag("p", tag("b", status(run)), class_=f"status {_kind(run)}"),
            tag(
                "dl",
                (
                    (tag("dt", key), tag("dd", value))
                    for key, value in known_facts(run, FACTS).items()
                ),
            ),
            class_="card",
        )
        for i, run in enumerate(runs)
    ]
    return tag("div", _headlines(runs), tag("div", facts, class_="cards"))


def status(run: RunFiles) -> str:
    """One sentence: finished, stopped where, or not begun."""
    total, last = run.total_steps, run.last_step
    of = f" of {number(total)}" if total is not None else ""
    if run.results:
        steps = run.results.get("steps", last)
        evaluated = run.results.get("evaluated_step", steps)
        of = f" The numbers are those of the best checkpoint, step {number(evaluated)}."
        return f"Finished {number(steps)} steps.{of if evaluated != steps else ''}"
    if run.nonfinite:
        return f"Ended at step {number(run.nonfinite[-1])}{of}: a number was not finite."
    if not last:
        return "No step has been logged yet."
    return f"Not finished: step {number(last)}{of} is the last one logged."


def _kind(run: RunFiles) -> str:
    return "done" if run.results else "bad" if run.nonfinite else "open"


def _headlines(runs: Sequence[RunFiles]) -> Html | None:
    finals = [run.final for run in runs]
    names = [n for n in {n for f in finals for n in f} if _is_headline(n, finals)]
    names.sort(key=lambda name: (name.split("/")[:2], not _is_search(name, runs[0]), name))
    if not names:
        return None
    cards = []
    for name in names[:HEADLINES]:
        path = name.rpartition("/")[0]
        values = [final.get(name) for final in finals]
        shown = [tag("span", labelled(name, values[0]), class_="big")]
        if len(runs) == 2:
            shown = [
                tag(
                    "span", chip(i), labelled(name, value),
                    class_=f"big{best(name, value, values[1 - i])}",
                )
                for i, value in enumerate(values)
            ]  # fmt: skip
            shown.append(tag("span", f"B − A {difference(name, *values)}", class_="note"))
        else:
            notes = initial(name, runs[0]), _interval(name, runs[0])
            shown += [tag("span", note, class_="note") for note in notes if note]
        label = " · ".join(way(part) for part in path.split("/")[1:])
        cards.append(
            tag("li", tag("span", tag("bdi", label), class_="label"), shown,
                tag("span", words(name), class_="note"))
        )  # fmt: skip
    return tag("ul", cards, class_="headlines")


def _is_search(name: str, run: RunFiles) -> bool:
    """Returns True for a metric of queries that search documents, the direction of a search."""
    with suppress(*MALFORMED):
        part = run.config["evals"][name.split("/")[1]]
        return f"/{part['query']}_to_{part['document']}/" in name
    return False


def initial(name: str, run: RunFiles) -> str:
    """Returns a metric of the initial weights (step 0), or "" if they were not evaluated."""
    step, value = next(iter(run.series.get(name, [])), (None, None))
    return f"before training {labelled(name, value)}" if step == 0 and run.last_step > 0 else ""


def _interval(name: str, run: RunFiles) -> str:
    """Returns the 95% interval of a share of fewer than 1,000 queries or images, else ""."""
    evaluator, value = "/".join(name.split("/")[:2]), run.final.get(name)
    with suppress(*MALFORMED):
        found = run.examples[evaluator]
        sides = [side for side in found.get("directions", ()) if f"/{side['name']}/" in name]
        count = sides[0]["queries"] if sides else found["images"]
        if 0 < count < FEW and is_number(value) and 0 <= value <= 1:
            low, high = (labelled(name, end) for end in wilson_interval(value, count))
            return f"95% interval {low} to {high} ({number(count)} queries)"
    return ""


def _is_headline(name: str, finals: Sequence[Mapping[str, Any]]) -> bool:
    last = name.rsplit("/", 1)[-1]
    if "/" not in name or not any(is_number(final.get(name)) for final in finals):
        return False
    return last in ("R@1", "accuracy")


def _model(run: RunFiles) -> str:
    lines = []
    for name, tower in run.config["towers"].items():
        sizes = [f"{key} {tower[key]}" for key in ("depth", "width") if key in tower]
        lines.append(f"{name} {', '.join([str(tower.get('type', '?')), *sizes])}")
    count = run.results.get("parameter_count", run.start.get("parameter_count"))
    if is_number(count):
        lines.append(f"{number(count)} parameters")
    return "; ".join([*lines, f"topology {run.config.get('topology', '?')}"])


def _length(run: RunFiles) -> str:
    batch, steps = run.config.get("batch_size"), run.results.get("steps", run.last_step)
    parts = [f"{number(steps)} steps"]
    if is_number(batch) and is_number(steps):
        parts.append(f"batches of {number(batch)}")
        records = run.lookup("records")
        if is_number(records) and records > 0:
            epochs = number(steps * batch / records, 3)
            parts.append(f"{epochs} epochs of {number(records)} records")
    seconds = run.results.get("seconds")
    if is_number(seconds):
        since = run.results.get("resumed_from")
        after = f" since it was resumed at step {number(since)}" if since else ""
        parts.append(f"{duration(seconds)}{after}")
    return ", ".join(parts)


def _loss(run: RunFiles) -> str:
    kinds = " + ".join(str(loss["type"]) for loss in run.config.get("losses", {}).values())
    points = run.series.get("loss", [])
    ends = [number(value) for _, value in points[:: max(1, len(points) - 1)]]
    return ", ".join(filter(None, [kinds, " → ".join(ends)])) or NONE


def _best(run: RunFiles) -> str | None:
    """The best value of config.best_metric, and where it was."""
    name = run.config.get("best_metric")
    if not name:
        return None
    # Step 0, the initial weights of `config.init`, has no checkpoint.
    points = [(s, v) for s, v in run.series.get(name, []) if math.isfinite(v) and s > 0]
    if not points:
        return f"{name}: not measured yet"
    least = run.config.get("best_mode", "min" if smaller_is_better(name) else "max") == "min"
    sign = -1 if least else 1
    step, value = max(points, key=lambda p: (sign * p[1], p[0]))  # the later of equal ones
    return f"{name} {labelled(name, value)} at step {number(step)}"


def _throughput(run: RunFiles) -> str | None:
    """The median, as the first step's number holds the compilation of others."""
    rate, wait = (
        [value for _, value in run.series.get(name, []) if math.isfinite(value)]
        for name in ("examples_per_second", "data_wait")
    )
    if not rate:
        return None
    waiting = f", waiting for data {labelled('data_wait', median(wait))}" if wait else ""
    return f"{number(median(rate), 3)} examples/s{waiting} (medians)"


FACTS: tuple[tuple[str, Callable[[RunFiles], Any]], ...] = (
    ("trained", _model),
    ("on", lambda run: described(run.config["data"])),
    ("for", _length),
    ("loss", _loss),
    ("best", _best),
    ("throughput", _throughput),
)
