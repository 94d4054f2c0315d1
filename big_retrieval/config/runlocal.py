"""`:runlocal`: any config, shrunk so that two CPU cores train it in about a minute."""

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from big_retrieval import config as configs
from big_retrieval.config import Config, schema
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.fields import Field

log = logging.getLogger(__name__)
STEPS = 300  # of a run
ARGUMENT = "data"  # name of the config argument with the path of the data

Editable = Any  # a ConfigDict, whose attributes have no static types

# Keys that the command line sets while a config file runs, such as "data.path"; "data" if the
# config's argument of this name is set.
_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())


@contextlib.contextmanager
def command_line(keys: Iterable[str]) -> Iterator[None]:
    """Makes `runlocal` read these keys of the command line inside of the context."""
    token = _given.set(frozenset(keys))
    try:
        yield
    finally:
        _given.reset(token)


def note_argument(is_given: bool) -> None:
    """Records whether a config's argument names the data, as in `:runlocal,data=FOLDER`."""
    _given.set(_given.get() - {ARGUMENT} | ({ARGUMENT} if is_given else set()))


def runlocal(c: Editable, keep_data: bool | None = None) -> Editable:
    """Shrinks a config so that two CPU cores train it in about a minute, with the same code.

    The structure stays (towers, class tokens, topology, losses, kind of schedule). Sizes shrink,
    and computation is in float32 without dropout. Generated scenes replace the data, unless the
    command line sets the config's argument `data` or a key such as `--config.data.path`. On kept
    data, fields keep their columns and files, and evaluators stay; if the command line set keys,
    only evaluators whose data it set. A log line names the files, weights, data and evaluators that
    are left out.

    Args:
      keep_data: True or False overrides the command line.
    """
    full = schema.parse(Config, c)
    c.unlock()
    _shorten(c)
    keep, named = _kept(full, keep_data)
    small = _shrunk(schema.parse(Config, c), keep, named)
    for key, value in schema.to_config_dict(small).items():
        c[key] = value
    reason = "its data are generated unless the command line sets --config.data.path"
    if full.data.generated and not keep:  # other generated scenes replace these evaluators
        files = {k: x for k, x in full.evals.items() if x.data and not x.data.generated}
        same = {k: x for k, x in full.evals.items() if k in small.evals}
        full = replace(full, best_metric="", evals=files | same)
    if keep:
        reason = "the command line sets the data"
        for name in sorted(full.evals.keys() - small.evals.keys())[:1]:
            reason += f" without --config.evals.{name}.data.path"
    if lost := list(_lost(schema.to_plain(full), schema.to_plain(small), "config")):
        log.info(f":runlocal leaves out {', '.join(lost)}: its towers are small, and {reason}")
    return c


def _shorten(c: Editable) -> None:
    """Shortens the run; phases begin after the same share of it."""
    phases = c.optimizer.phases
    total = {"start_step": c.total_steps, "start_epoch": None if c.total_steps else c.total_epochs}
    for index, name in enumerate(sorted(phases, key=lambda x: _start(phases[x]))):
        key = "start_step" if phases[name].start_step is not None else "start_epoch"
        start, length = phases[name][key] or 0, total[key]
        share = start / length if length else index / len(phases)
        phases[name].start_step, phases[name].start_epoch = int(share * STEPS), None
    changes = (rate for phase in phases.values() for rate in phase.groups.values())
    for entry in (*c.optimizer.groups.values(), *phases.values(), *changes):
        entry.schedule.warmup_steps = min(20, entry.schedule.warmup_steps)
        if entry.lr is not None:
            entry.lr *= 2e-3 / c.optimizer.lr
    c.total_steps, c.total_epochs, c.total_examples = STEPS, None, None
    c.batch_size, c.log_every, c.eval_every, c.checkpoint_every = 64, 10, 0, 100
    c.eval_every_epochs = c.checkpoint_every_epochs = 0.0
    c.microbatch = 32 if c.microbatch else None
    c.dtype, c.best_metric, c.final_weights = "float32", "", "last"
    c.optimizer.lr, c.optimizer.schedule.warmup_steps = 2e-3, 20


def _start(phase: Editable) -> float:
    return phase.start_step or phase.start_epoch or 0


def _lost(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yields the paths of replaced groups (by type or split) and of removed groups and names."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if any(old.get(key) != new.get(key) for key in ("type", "split")):
            yield path
            return
        for key, value in old.items():
            yield from _lost(value, new.get(key), f"{path}.{key}")
    elif old and not new and (isinstance(old, str | Mapping) or path == "config.negatives.count"):
        yield path


def _kept(c: Config, keep_data: bool | None) -> tuple[bool, set[str]]:
    """Returns whether the data stay, and the evaluators that stay because of the command line."""
    keys = _file_keys()
    if ARGUMENT in _given.get() if keep_data is None else keep_data:
        return True, set(c.evals)
    named = {key.split(".")[1] for key in keys if key.startswith("evals.")}
    return any(key.startswith("data.") for key in keys), named & set(c.evals)


def _shrunk(c: Config, keep: bool, named: Collection[str]) -> Config:
    data = c.data if keep else c.data.runlocal()
    generated = data.generated and not keep
    texts_alone = _first(c.fields, "document", "text") and not _first(c.fields, modality="image")
    if generated and isinstance(data, configs.Scenes) and texts_alone:
        data = configs.GradedScenes()  # has texts on both sides
    graded = generated and data.graded
    fields = {name: x.runlocal() if generated else x.shrunk() for name, x in c.fields.items()}
    if graded:
        fields = {name: field.in_graded_scenes() for name, field in fields.items()}
    small = replace(
        c,
        towers={name: tower.runlocal() for name, tower in c.towers.items()},
        losses={name: loss.runlocal() for name, loss in c.losses.items()},
        tokenizer=c.tokenizer.runlocal(),
        init={},
        fields=fields,
        data=data,
    )
    if keep:
        return replace(small, evals={name: x for name, x in c.evals.items() if name in named})
    if not generated:
        return replace(small, evals=_evaluators_with_data(c))
    if graded:
        score = {"score": "score", "s_max": 100.0} if c.labels.score else {}
        labels = replace(c.labels, query="query_id", document="document_id", **score)
        small = replace(small, labels=labels)
    negatives = replace(c.negatives, count=c.negatives.count if graded else 0, column="negatives")
    evals = _generated_evaluators(c, graded) | {name: c.evals[name] for name in named}
    return replace(small, negatives=negatives, evals=evals)


def _file_keys() -> frozenset[str]:
    """Returns the keys of the command line that name data, of training or of evaluators.

    Keys that generated data have, too, such as `data.count`, change the generated data.
    """
    parts = (configs.Scenes, configs.GradedScenes)
    generated = {key.name for source in parts for key in dataclasses.fields(source)}
    return frozenset(
        key
        for key in _given.get()
        if key.startswith("data.") or (key.startswith("evals.") and ".data." in key)
        if key.rpartition(".")[2] not in generated
    )


def _first(fields: Mapping[str, Field], side: str = "", modality: str = "") -> str:
    """Returns the first encoded field of a side and a modality; empty means any, or no field."""
    for name, field in fields.items():
        if side in ("", field.side) and modality in ("", field.modality) and field.side != "target":
            return name
    return ""


def _evaluators_with_data(c: Config) -> dict[str, Evaluator]:
    """Returns the evaluators of a `runlocal` that reads no generated data."""
    evals = {}
    for name, evaluator in c.evals.items():
        small, data = evaluator.runlocal() or evaluator, evaluator.data
        if data is not None and not data.generated:
            data = data.runlocal()
            if data.generated:
                continue
        evals[name] = small if data is None else replace(small, data=data)  # type: ignore
    return evals


def _generated_evaluators(c: Config, graded: bool) -> dict[str, Evaluator]:
    modes = next((evaluator.modes for evaluator in c.evals.values() if evaluator.modes), ())
    small = {name: evaluator.runlocal() for name, evaluator in c.evals.items()}
    evals = _graded_evaluators(modes) if graded else _scene_evaluators(c.fields, modes)
    return evals | {name: evaluator for name, evaluator in small.items() if evaluator is not None}


def _scene_evaluators(fields: Mapping[str, Field], modes: tuple[str, ...]) -> dict[str, Evaluator]:
    """Returns retrieval of generated scenes, and zero-shot classification of their colours."""
    test = configs.Scenes(split="test", count=200)
    query, document = _first(fields, "query"), _first(fields, "document")
    retrieval = configs.Retrieval(data=test, modes=modes, query=query, document=document)
    evals: dict[str, Evaluator] = {"test": retrieval}
    image, text = _first(fields, modality="image"), _first(fields, modality="text")
    if image and text:
        colours = configs.Scenes(split="colours", count=100)
        evals["colours"] = configs.ZeroShot(data=colours, image=image, text=text)
    return evals


def _graded_evaluators(modes: tuple[str, ...]) -> dict[str, Evaluator]:
    splits = ("in_domain", "novel_query", "novel_document", "zero_shot")
    sources = {split: configs.GradedScenes(split=split) for split in splits}
    return {split: configs.Ranking(modes=modes, data=data) for split, data in sources.items()}
