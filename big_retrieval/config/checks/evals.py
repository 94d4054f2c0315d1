"""Checks of all evaluators together; each evaluator checks its own keys."""

import difflib
from collections.abc import Iterator
from typing import Any

from big_retrieval.config import Config


def check_evals(c: Config) -> Iterator[str]:
    """Yields an error message for every mistake in `config.evals`."""
    yield from _prefixes(c)
    for name, evaluator in c.evals.items():
        path = f"config.evals.{name}"
        for key, field in evaluator.reads().items():
            if field not in c.encoded:
                choices = ", ".join(sorted(c.encoded))
                is_target = field in c.fields
                wrong = "is a target in config.fields" if is_target else "config.fields lacks"
                yield f"{path}.{key} is {field!r}, which {wrong} (it has: {choices})."
        if evaluator.every is not None and evaluator.every < 0:
            yield f"{path}.every is {evaluator.every}; it must be 0 (at the end only) or more."
        mixed = len({field.head.lexical for field in c.encoded.values()}) > 1
        if mixed and evaluator.data is not None and not evaluator.reads():
            yield (
                f"{path} compares all fields of a side, of which some are lexical and some are "
                "not: use evaluators that name their fields, such as 'retrieval'."
            )
        yield from evaluator.check(c, path)
    choices = sorted(metrics_of_all(c))
    if c.best_metric and c.best_metric not in choices and not _may_be(c, c.best_metric):
        near = difflib.get_close_matches(c.best_metric, choices, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(choices) or 'none'}."
        yield f"config.best_metric {c.best_metric!r} is not a metric of config.evals; {hint}"
    if c.final_weights == "best" and not c.best_metric:
        yield (
            "config.final_weights is 'best', but config.best_metric is empty: name the metric "
            "of the best checkpoint, or set final_weights to 'last'."
        )


def _prefixes(c: Config) -> Iterator[str]:
    """Checks that no two evaluators have metrics of the same name."""
    taken: dict[str, str] = {}
    if any(evaluator.traffic > 0 for evaluator in c.evals.values()):
        taken["ranking/traffic"] = "the average over config.evals.*.traffic"
    for name, evaluator in c.evals.items():
        path, prefix = f"config.evals.{name}", evaluator.prefix(name)
        for other, owner in taken.items():
            if f"{prefix}/".startswith(f"{other}/") or f"{other}/".startswith(f"{prefix}/"):
                yield (
                    f"{path}: its metrics are called {prefix}/..., which {owner} uses, too "
                    f"({other}/...). Rename the evaluator."
                )
        taken[prefix] = path


def metrics_of_all(c: Config) -> list[str]:
    """Returns the names of all metrics that evaluators know before they run."""
    names = [metric for name in c.evals for metric in metrics_of(c, name)]
    ranked: list[Any] = [ev for ev in c.evals.values() if ev.traffic > 0]
    if not ranked:
        return names
    prefixes = [""]  # weightings of document fields that all rankings have
    for name in ranked[0].documents:
        prefixes += [f"{name}/"] if all(name in ev.documents for ev in ranked) else []
    common = [m for m in ranked[0].metrics if all(m in ev.metrics for ev in ranked)]
    return names + [f"ranking/traffic/{prefix}{m}" for prefix in prefixes for m in common]


def metrics_of(c: Config, name: str) -> list[str]:
    """Returns the names of an evaluator's metrics; [] if it does not know them before it runs."""
    prefix = c.evals[name].prefix(name)
    return [f"{prefix}/{metric}" for metric in c.evals[name].metric_names(c) or ()]


def _may_be(c: Config, metric: str) -> bool:
    """Returns True if an evaluator with unknown metric names may have this metric."""
    unknown = (x.prefix(name) for name, x in c.evals.items() if x.metric_names(c) is None)
    return any(metric.startswith(f"{prefix}/") for prefix in unknown)
