"""Checks of the evaluators; see `big_retrieval.checks`."""

import difflib
from collections.abc import Iterator

from big_retrieval.checks.data import SCENE_LABELS
from big_retrieval.config import (
    Beir,
    Config,
    Evaluation,
    Graded,
    GradedScenes,
    ImageField,
    Lexical,
    Ranking,
    Retrieval,
    Scenes,
    TextField,
    ZeroShot,
    is_lexical,
)
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import parse_metric
from big_retrieval.evals.modes import Mode, Side, own_top, parse_mode
from big_retrieval.evals.weightings import parse_weighting


def evals(c: Config) -> Iterator[str]:
    """What is wrong with `config.evals`, a sentence each."""
    for name, ev in c.evals.items():
        path = f"config.evals.{name}"
        for key, field in _fields_of(ev).items():
            if field not in c.fields:
                known = ", ".join(sorted(c.fields))
                yield f"{path}.{key} is {field!r}, which config.fields lacks (it has: {known})."
        if ev.every is not None and ev.every < 0:
            yield f"{path}.every is {ev.every}; it must be 0 (at the end only) or more."
        if isinstance(ev, Ranking):
            yield from _ranking(c, path, ev)
        elif isinstance(ev, Retrieval):
            yield from _retrieval(path, ev)
        else:
            yield from _zero_shot(c, path, ev)
        yield from _modes(c, path, ev)
    known = sorted(metrics_of_all(c))
    if c.best_metric and c.best_metric not in known:
        near = difflib.get_close_matches(c.best_metric, known, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}."
        yield f"config.best_metric {c.best_metric!r} is of no evaluator in config.evals; {hint}"


def _modes(c: Config, path: str, ev: Evaluation) -> Iterator[str]:
    """What is wrong with the ways to search with a lexical model."""
    if isinstance(ev, ZeroShot) or not ev.modes:
        return
    if not is_lexical(c):
        yield f"{path}.modes are for lexical models, which this is not; leave them out."
        return
    for text in ev.modes:
        try:
            mode = parse_mode(text, f"{path}.modes")
        except UserError as problem:
            yield str(problem)
            continue
        yield from _mode(c, path, ev, mode)


def _mode(c: Config, path: str, ev: Retrieval | Ranking, mode: Mode) -> Iterator[str]:
    """What keeps a lexical model from searching in one way."""
    sides: tuple[Side, Side] = ("query", "document")
    for side in sides:
        names = _side_fields(c, ev, side)
        if mode.bags == side and any(isinstance(c.fields[name], ImageField) for name in names):
            yield f"{path}.modes has {mode.name!r}, but the {side} side has images, not words."
        own, wanted = own_top(c.fields, names), mode.top[side]
        if own is not None and wanted is not None and wanted > own:
            yield (
                f"{path}.modes has {mode.name!r}, but the model's own gate leaves {own} columns of "
                f"the {side} side, which can only be narrowed: take {own} at most, or 'all'."
            )


def _side_fields(c: Config, ev: Retrieval | Ranking, side: Side) -> list[str]:
    """The fields of a side of an evaluator that the config has."""
    if isinstance(ev, Retrieval):
        name = ev.query if side == "query" else ev.document
        return [name] if name in c.fields else []
    return [name for name, field in c.fields.items() if field.side == side]


def _fields_of(ev: Evaluation) -> dict[str, str]:
    """Key -> the field that an evaluator names with it."""
    if isinstance(ev, Ranking):
        return {}  # all of them
    if isinstance(ev, Retrieval):
        return {"query": ev.query, "document": ev.document}
    return {"image": ev.image, "text": ev.text}


def metrics_of_all(c: Config) -> list[str]:
    """The names of all metrics that the evaluators of a config give together."""
    found = [metric for name in c.evals for metric in metrics_of(c, name)]
    ranked = [ev for ev in c.evals.values() if isinstance(ev, Ranking) and ev.traffic > 0]
    if not ranked:
        return found
    ways = [w for w in ("", *ranked[0].documents) if all(w in ("", *e.documents) for e in ranked)]
    common = [m for m in ranked[0].metrics if all(m in ev.metrics for ev in ranked)]
    return found + [f"ranking/traffic/{way}{'/' if way else ''}{m}" for way in ways for m in common]


def metrics_of(c: Config, name: str) -> list[str]:
    """The names of the metrics of one evaluator of `config.evals`."""
    ev = c.evals[name]
    prefix = f"{ev.type}/{name}"
    if isinstance(ev, ZeroShot):
        return [f"{prefix}/{metric}" for metric in ("accuracy", "top5_accuracy")]
    if isinstance(ev, Ranking):
        ways = ("", *(f"{way}/" for way in (*ev.documents, *ev.modes)))
        return [f"{prefix}/{way}{metric}" for way in ways for metric in ev.metrics]
    ways = (f"{ev.query}_to_{ev.document}", f"{ev.document}_to_{ev.query}")
    metrics = [*(f"R@{k}" for k in ev.recall_at), "mean_rank", "median_rank"]
    modes = ("", *(f"{mode}/" for mode in ev.modes))
    found = [f"{prefix}/{mode}{way}/{each}" for mode in modes for way in ways for each in metrics]
    fields = [c.fields[each] for each in (ev.query, ev.document) if each in c.fields]
    if all(isinstance(f.head, Lexical) for f in fields) and len({f.kind for f in fields}) == 2:
        found.append(f"{prefix}/words@5")
    return found


def _ranking(c: Config, path: str, ev: Ranking) -> Iterator[str]:
    if not isinstance(ev.data, Graded | GradedScenes | Beir):
        yield (
            f"{path}.data is of the type {ev.data.type!r}, which has no judged pairs; give it a "
            "source of the type 'graded' or 'beir'."
        )
    if not 0 < ev.dev_share < 1:
        yield f"{path}.dev_share is {ev.dev_share}; it is a share between 0 and 1."
    for key, least in (("depth", 1), ("chunk", 1), ("traffic", 0)):
        if getattr(ev, key) < least:
            yield f"{path}.{key} is {getattr(ev, key)}; it must be at least {least}."
    if not ev.metrics:
        yield f"{path}.metrics is empty; name some, such as ('nDCG@10', 'ERR')."
    documents = [name for name, field in c.fields.items() if field.side == "document"]
    try:
        for metric in ev.metrics:
            parse_metric(metric)
        for way in ev.documents:
            parse_weighting(way, documents, f"{path}.documents")
    except UserError as problem:
        text = str(problem)
        yield text if path in text else f"{path}.metrics: {text}"


def _retrieval(path: str, ev: Retrieval) -> Iterator[str]:
    if ev.query == ev.document:
        yield f"{path}.query and {path}.document are both {ev.query!r}; give it two fields."
    if not ev.recall_at or min(ev.recall_at) < 1:
        yield f"{path}.recall_at is {ev.recall_at}; it must hold ranks from 1 on."
    if ev.chunk < 1:
        yield f"{path}.chunk is {ev.chunk}; it must be at least 1."


def _zero_shot(c: Config, path: str, ev: ZeroShot) -> Iterator[str]:
    for key, name, kind in (("image", ev.image, ImageField), ("text", ev.text, TextField)):
        if not isinstance(c.fields.get(name), kind):
            yield f"{path}.{key} is {name!r}, which is no {key} field of config.fields."
    for prompt in ev.prompts:
        if "{}" not in prompt:
            yield f"{path}.prompts: {prompt!r} needs a {{}} where the class name goes."
    own = bool(ev.classes and ev.prompts)
    if not isinstance(ev.data, Scenes):
        if not ev.prompts and not ev.file:
            yield f"{path}.prompts is empty; own data need some, such as 'a photo of a {{}}'."
        return
    label, count = SCENE_LABELS.get(ev.data.split, ("", 0))
    if ev.label != label and not own:
        splits = ", ".join(f"{name!r} for {split}" for split, (name, _) in SCENE_LABELS.items())
        yield (
            f"{path}.label is {ev.label!r}, which {path}.data.split {ev.data.split!r} lacks "
            f"(labels: {splits}); change one of them."
        )
    if ev.label == label and ev.classes and len(ev.classes) != count:
        yield f"{path}.classes has {len(ev.classes)} names; label {label!r} needs {count}."
