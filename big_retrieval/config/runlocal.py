"""`:runlocal`: any config, shrunk so that two CPU cores train it in about a minute."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import ml_collections

from big_retrieval import config as configs
from big_retrieval.config import schema
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.fields import Field, Tokenizer
from big_retrieval.config.loss import Loss
from big_retrieval.config.sources import Source
from big_retrieval.config.towers import Tower

log = logging.getLogger(__name__)
T = TypeVar("T")
STEPS = 300  # of a run
ARGUMENT = "data"  # name of the config argument with the path of the data

Editable = Any  # a ConfigDict, whose attributes have no static types

# Keys that the command line sets while a config file runs, such as "data.path", and "data" for the
# argument of this name.
_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())


@contextlib.contextmanager
def command_line(keys: Iterable[str]) -> Iterator[None]:
    """Returns a context in which `runlocal` knows the keys of overrides, such as "data.path"."""
    token = _given.set(frozenset(keys))
    try:
        yield
    finally:
        _given.reset(token)


def note_argument(given: bool) -> None:
    """Notes if a config's argument names the data, as in `:runlocal,data=FOLDER`."""
    _given.set(_given.get() - {ARGUMENT} | ({ARGUMENT} if given else set()))


def runlocal(c: Editable, keep_data: bool | None = None) -> Editable:
    """Shrinks a config to what two CPU cores train in about a minute, through the same code.

    The structure stays (towers, class tokens, topology, losses, kind of schedule). Sizes shrink,
    and computation is in float32 without dropout. The data become generated scenes, unless
    `keep_data` is True or the command line names data by the config's argument `data` or by a key
    such as `--config.data.path`. On kept data, evaluators stay; if the command line set keys, only
    evaluators whose data it set. On kept data, fields keep their columns and files; on generated
    data, they may generate values. A log line names what is left out.

    Args:
      c: the config, which is changed.
      keep_data: None keeps data and evaluators only if the command line names them.
    """
    before = c.to_dict()
    c.unlock()
    _shrink(c, keep_data)
    if lost := _left_out(before, c.to_dict()):
        log.info(
            f":runlocal leaves out {', '.join(lost)}: its towers are small, and its data are "
            "generated unless they are given"
        )
    return c


def _left_out(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns the files, weights, hard negatives and evaluators that the small config lacks.

    For fields, returns all keys whose values differ between kept and generated data.
    """
    lost = [f"config.init.{name}" for name in before["init"]]
    for kind in ("tokenizer", "towers", "losses"):
        for path, old, new in schema.differences(before[kind], after[kind], f"config.{kind}"):
            lost += [path] if isinstance(old, str) and old and not new else []
    for name, field in _parts(Field, before, "fields").items():
        path, kept = f"config.fields.{name}", schema.to_plain(field.shrunk())
        small = schema.to_plain(after["fields"][name])
        changed = [key for key, *_ in schema.differences(kept, small, path)]
        lost += [key for key in changed if not key.endswith(".column")]
    evaluators, best_metric = _parts(Evaluator, before, "evals"), before["best_metric"]
    kept = [name for name, group in before["evals"].items() if after["evals"].get(name) == group]
    measured = any(best_metric.startswith(f"{evaluators[name].prefix(name)}/") for name in kept)
    if best_metric and (measured or not _data(before).generated):
        lost.append("config.best_metric")
    if before["negatives"]["count"] and not after["negatives"]["count"]:
        lost.append("config.negatives")
    if _other_data(before, after):
        lost.insert(0, "config.data")
    if _data(after).generated:
        for name, part in evaluators.items():
            small = after["evals"].get(name, {})
            generated = part.data is not None and part.data.generated
            if _other_data(before["evals"][name], small) and (small or not generated):
                lost.append(f"config.evals.{name}")
    return lost


def _other_data(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns True if the source of a group is of another type or split afterwards."""
    old, new = before.get("data") or {}, after.get("data") or {}
    return any(old.get(key) != new.get(key) for key in ("type", "split"))


def _parts(kind: type[T], c: Mapping[str, Any], key: str) -> dict[str, T]:
    """Returns the typed entries of `config.towers` or another group of parts of one kind."""
    groups = c[key].items()
    return {name: schema.parse_value(kind, x, f"config.{key}.{name}") for name, x in groups}


def _data(c: Mapping[str, Any]) -> Source:
    return schema.parse_value(Source, c["data"], "config.data")


def _shrink(c: Editable, keep_data: bool | None) -> None:
    """Shrinks the config in place, see `runlocal`."""
    keep, keys = ARGUMENT in _given.get() if keep_data is None else keep_data, _file_keys()
    named = {key.split(".")[1] for key in keys if key.startswith("evals.")} & set(c.evals)
    named = set(c.evals) if keep else named
    keep = keep or any(key.startswith("data.") for key in keys)
    _shrink_run(c)
    tokenizer = schema.parse(Tokenizer, c.tokenizer, "config.tokenizer")
    c.tokenizer = schema.to_config_dict(tokenizer.runlocal())
    for name, tower in _parts(Tower, c, "towers").items():
        c.towers[name] = schema.to_config_dict(tower.runlocal())
    for name, loss in _parts(Loss, c, "losses").items():
        c.losses[name] = schema.to_config_dict(loss.runlocal())
    c.init = ml_collections.ConfigDict()
    fields = _parts(Field, c, "fields")
    data = None if keep else _data(c).runlocal()
    no_images = not _first(fields, modality="image")
    if isinstance(data, configs.Scenes) and no_images and _first(fields, "document", "text"):
        data = configs.GradedScenes()  # texts on both sides, which scenes do not have
    generated = data is not None and data.generated
    graded = data is not None and data.generated and data.graded
    for name, field in fields.items():
        small = field.runlocal() if generated else field.shrunk()
        small = small.in_graded_scenes() if graded else small
        c.fields[name] = schema.to_config_dict(small)
    if data is None:
        _drop_evaluators(c, set(c.evals) - named)
        return
    c.data = schema.to_config_dict(data)
    if not generated:
        c.evals = _evaluators_with_data(c)
        return
    kept = {name: part.runlocal() for name, part in _parts(Evaluator, c, "evals").items()}
    kept = {name: schema.to_config_dict(part) for name, part in kept.items() if part is not None}
    kept |= {name: c.evals[name] for name in named}
    modes = next((ev.modes for ev in c.evals.values() if ev.get("modes")), ())
    evals = _graded_evaluators(modes) if graded else _scene_evaluators(fields, modes)
    c.evals = ml_collections.ConfigDict(evals | kept)
    c.negatives.update(count=c.negatives.count if graded else 0, column="negatives")
    if graded:
        c.labels.update(query="query_id", document="document_id")
        if c.labels.score:
            c.labels.update(score="score", s_max=100.0)


def _shrink_run(c: Editable) -> None:
    """Shortens the run; phases begin after the same share of it."""
    phases = c.optimizer.phases
    total = {"start_step": c.total_steps, "start_epoch": None if c.total_steps else c.total_epochs}
    for index, name in enumerate(sorted(phases, key=lambda x: _start(phases[x]))):
        key = "start_step" if phases[name].start_step is not None else "start_epoch"
        start, length = phases[name][key] or 0, total[key]
        share = start / length if length else index / len(phases)
        phases[name].start_step, phases[name].start_epoch = int(share * STEPS), None
    changes = (rate for phase in phases.values() for rate in phase.groups.values())
    for part in (*c.optimizer.groups.values(), *phases.values(), *changes):
        part.schedule.warmup_steps = min(20, part.schedule.warmup_steps)
        if part.lr is not None:
            part.lr *= 2e-3 / c.optimizer.lr
    c.total_steps, c.total_epochs, c.total_examples = STEPS, None, None
    c.batch_size, c.log_every, c.eval_every, c.checkpoint_every = 64, 10, 0, 100
    c.eval_every_epochs = c.checkpoint_every_epochs = 0.0
    c.microbatch = 32 if c.microbatch else None
    c.dtype, c.best_metric, c.final_weights = "float32", "", "last"
    c.optimizer.lr, c.optimizer.schedule.warmup_steps = 2e-3, 20


def _start(phase: Editable) -> float:
    return phase.start_step or phase.start_epoch or 0


def _file_keys() -> frozenset[str]:
    """Returns the keys of the command line that name data, of training or of evaluators.

    Keys that generated data have, too, such as `data.count`, change the generated data.
    """
    parts = (configs.Scenes, configs.GradedScenes)
    generated = {key.name for part in parts for key in dataclasses.fields(part)}
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


def _drop_evaluators(c: Editable, dropped: set[str]) -> None:
    """Removes the evaluators whose data the command line does not name."""
    names = sorted(dropped)
    if names:
        log.info(
            f"left out: {', '.join(f'config.evals.{name}' for name in names)}, as the command line "
            f"gives the training data alone; give --config.evals.{names[0]}.data.path, too"
        )
    for name in names:
        del c.evals[name]


def _evaluators_with_data(c: Editable) -> Editable:
    """Returns the evaluators whose data stay, for a `runlocal` that reads no generated data."""
    evals = ml_collections.ConfigDict()
    for name, part in _parts(Evaluator, c, "evals").items():
        small, data = part.runlocal() or part, part.data
        if data is not None and not data.generated:
            data = data.runlocal()
            if data.generated:
                log.info(f"left out: config.evals.{name}, whose data :runlocal does not read")
                continue
        small = small if data is None else dataclasses.replace(small, data=data)  # type: ignore
        evals[name] = schema.to_config_dict(small)
    return evals


def _scene_evaluators(fields: Mapping[str, Field], modes: tuple[str, ...]) -> dict[str, Editable]:
    """Returns retrieval of generated scenes, and zero-shot classification of their colours."""
    test = configs.Scenes(split="test", count=200)
    query, document = _first(fields, "query"), _first(fields, "document")
    retrieval = configs.Retrieval(data=test, modes=modes, query=query, document=document)
    evals = {"test": schema.to_config_dict(retrieval)}
    image, text = _first(fields, modality="image"), _first(fields, modality="text")
    if image and text:
        colours = configs.Scenes(split="colours", count=100)
        zero_shot = configs.ZeroShot(data=colours, image=image, text=text)
        evals["colours"] = schema.to_config_dict(zero_shot)
    return evals


def _graded_evaluators(modes: tuple[str, ...]) -> dict[str, Editable]:
    """Returns rankings of generated judged pairs, seen in training or not."""
    splits = ("in_domain", "novel_query", "novel_document", "zero_shot")
    sources = {split: configs.GradedScenes(split=split) for split in splits}
    rankings = {split: configs.Ranking(modes=modes, data=data) for split, data in sources.items()}
    return {split: schema.to_config_dict(ranking) for split, ranking in rankings.items()}
