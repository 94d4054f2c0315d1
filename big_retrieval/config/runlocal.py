"""`:runlocal`: any config, shrunk to what two CPU cores train in about a minute."""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import ml_collections

from big_retrieval import config as configs
from big_retrieval.config import schema
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.fields import Field, Tokenizer
from big_retrieval.config.loss import Loss
from big_retrieval.config.sources import Source
from big_retrieval.config.towers import Tower

log = logging.getLogger(__name__)
STEPS = 300  # of a run
ARGUMENT = "data"  # what configs call their argument that says where the data are

Editable = Any  # a ConfigDict, whose attributes have no static types

# What the command line sets while a config file is run: keys such as "data.path", and "data" for
# the argument of this name.
_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())


@contextlib.contextmanager
def command_line(keys: Iterable[str]) -> Iterator[None]:
    """A context in which `runlocal` knows what the command line sets.

    Args:
      keys: of the overrides, such as "data.path".
    """
    token = _given.set(frozenset(keys))
    try:
        yield
    finally:
        _given.reset(token)


def note_argument(given: bool) -> None:
    """Notes whether the argument `data` says where the data are: `:runlocal,data=FOLDER`."""
    _given.set(_given.get() - {ARGUMENT} | ({ARGUMENT} if given else set()))


def runlocal(c: Editable, keep_data: bool | None = None) -> Editable:
    """Shrinks a config to what two CPU cores train in about a minute, through the same code.

    The structure stays (towers, class tokens, topology, losses, schedule kind); sizes shrink,
    computation is in float32 and without dropout. The data become generated scenes, unless
    `keep_data`, or unless the command line says where they are: by the config's argument `data`, or
    by keys such as `--config.data.path`. Of evaluators, those of the kept data stay: with keys, the
    ones whose data are given, too. Fields keep their columns and files on kept data, and may make
    up values on generated data. A log line names what is left out.

    Args:
      c: the config to change.
      keep_data: keep data and evaluators; None: only where the command line gives them.
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
    """Files, weights, hard negatives and evaluators of a config that its small form has not.

    Of a field all keys by which the values of kept and of generated data differ.
    """
    lost = [f"config.init.{name}" for name in before["init"]]
    for kind in ("tokenizer", "towers", "losses"):
        for path, old, new in schema.differences(before[kind], after[kind], f"config.{kind}"):
            lost += [path] if isinstance(old, str) and old and not new else []
    for name, group in before["fields"].items():
        path = f"config.fields.{name}"
        kept = schema.to_plain(schema.parse_part(Field, group, path).shrunk())
        now = json.loads(json.dumps(after["fields"][name]))
        changed = [key for key, *_ in schema.differences(kept, now, path)]
        lost += [key for key in changed if not key.endswith(".column")]
    if before["best_metric"] and not _generated(Source, before["data"]):
        lost.append("config.best_metric")
    if before["negatives"]["count"] and not after["negatives"]["count"]:
        lost.append("config.negatives")
    if _other_data(before, after):
        lost.insert(0, "config.data")
    if _generated(Source, after["data"]):
        for name, group in before["evals"].items():
            now = after["evals"].get(name, {})
            if _other_data(group, now) and (now or not _generated(Evaluator, group)):
                lost.append(f"config.evals.{name}")
    return lost


def _other_data(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns True if the source of a group is of another type or split afterwards."""
    old, new = before.get("data") or {}, after.get("data") or {}
    return any(old.get(key) != new.get(key) for key in ("type", "split"))


def _generated(kind: Any, group: Mapping[str, Any]) -> bool:
    """Returns True if a source, or the source of an evaluator, is generated."""
    part = schema.parse_part(kind, group, "config")
    source = part if isinstance(part, Source) else part.data
    return source is not None and source.generated


def _shrink(c: Editable, keep_data: bool | None) -> Editable:
    """See `runlocal`."""
    keep, keys = ARGUMENT in _given.get() if keep_data is None else keep_data, _file_keys()
    own = {key.split(".")[1] for key in keys if key.startswith("evals.")}
    own = set(c.evals) if keep else own & set(c.evals)
    keep = keep or any(key.startswith("data.") for key in keys)
    _shrink_phases(c, STEPS)
    c.total_steps, c.total_epochs, c.total_examples = STEPS, None, None
    c.batch_size, c.log_every, c.eval_every, c.checkpoint_every = 64, 10, 0, 100
    c.eval_every_epochs = c.checkpoint_every_epochs = 0.0
    c.microbatch = 32 if c.microbatch else None
    c.dtype, c.best_metric, c.final_weights = "float32", "", "last"
    c.optimizer.lr, c.optimizer.schedule.warmup_steps = 2e-3, 20
    tokenizer = schema.parse(Tokenizer, c.tokenizer, "config.tokenizer")
    c.tokenizer = schema.to_config_dict(tokenizer.runlocal())
    for name, group in list(c.towers.items()):
        small = schema.parse_part(Tower, group, f"config.towers.{name}").runlocal()
        c.towers[name] = schema.to_config_dict(small)
    data = None if keep else schema.parse_part(Source, c.data, "config.data").runlocal()
    made_up = data is not None and data.generated
    for name, group in list(c.fields.items()):
        field = schema.parse_part(Field, group, f"config.fields.{name}")
        c.fields[name] = schema.to_config_dict(field.runlocal() if made_up else field.shrunk())
    for name, group in c.losses.items():
        small = schema.parse_part(Loss, group, f"config.losses.{name}").runlocal()
        c.losses[name] = schema.to_config_dict(small)
    c.init = ml_collections.ConfigDict()
    if data is None:
        return _with_own_data(c, own)
    image, text = _field(c, modality="image"), _field(c, modality="text")
    if isinstance(data, configs.Scenes) and not image and _field(c, "document", "text"):
        data = configs.GradedScenes()  # texts on both sides, which scenes do not have
    c.data = schema.to_config_dict(data)
    if not data.generated:
        c.evals = _evaluators_of_own_data(c.evals)
        return c
    kept = {**_own_evaluators(c.evals), **{name: c.evals[name] for name in own}}
    graded, scored = data.graded, bool(c.labels.score)
    modes = next((ev.modes for ev in c.evals.values() if ev.get("modes")), ())
    c.evals = ml_collections.ConfigDict()
    c.negatives.update(count=c.negatives.count if graded else 0, column="negatives")
    if graded:
        _graded_scenes(c, scored, modes)
        return _with_evaluators(c, kept)
    sides: dict[str, Any] = {side: _field(c, side) for side in ("query", "document")}
    test = configs.Scenes(split="test", count=200)
    c.evals.test = schema.to_config_dict(configs.Retrieval(data=test, modes=modes, **sides))
    if image and text:
        colours = configs.Scenes(split="colours", count=100)
        small = configs.ZeroShot(data=colours, image=image, text=text)
        c.evals.colours = schema.to_config_dict(small)
    return _with_evaluators(c, kept)


def _with_evaluators(c: Editable, evals: Mapping[str, Editable]) -> Editable:
    """Adds evaluators, which replace those of the same names."""
    for name, group in evals.items():
        c.evals[name] = group
    return c


def _file_keys() -> frozenset[str]:
    """The keys of the command line that say where data are, of training or of evaluators.

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


def _with_own_data(c: Editable, own: set[str]) -> Editable:
    """Leaves the data as they are, and of the evaluators those whose names are given."""
    others = sorted(set(c.evals) - own)
    if others:
        names = ", ".join(f"config.evals.{name}" for name in others)
        log.info(
            f"left out: {names}, as the command line gives the training data alone; give "
            f"--config.evals.{others[0]}.data.path, too"
        )
    for name in others:
        del c.evals[name]
    return c


def _field(c: Editable, side: str = "", modality: str = "") -> str:
    """The first field of a side ("": of both) and a modality ("": of any); "" where none is so."""
    for name, group in c.fields.items():
        part = schema.parse_part(Field, group, f"config.fields.{name}")
        wanted = side in ("", part.side) and modality in ("", part.modality)
        if wanted and part.side != "target":
            return name
    return ""


def _evaluators_of_own_data(evals: Editable) -> Editable:
    """The evaluators of a `runlocal` that reads no generated data: those whose data stay, too."""
    out = ml_collections.ConfigDict()
    for name, group in evals.items():
        part = schema.parse_part(Evaluator, group, f"config.evals.{name}")
        small, data = part.runlocal() or part, part.data
        if data is not None and not data.generated:
            data = data.runlocal()
            if data.generated:
                log.info(f"left out: config.evals.{name}, whose data :runlocal does not read")
                continue
        small = small if data is None else dataclasses.replace(small, data=data)  # type: ignore
        out[name] = schema.to_config_dict(small)
    return out


def _shrink_phases(c: Editable, steps: int) -> None:
    """Lets phases begin after the same share of a run of so many steps."""
    phases = c.optimizer.phases
    total = {"start_step": c.total_steps, "start_epoch": None if c.total_steps else c.total_epochs}
    for place, name in enumerate(sorted(phases, key=lambda x: _start(phases[x]))):
        key = "start_step" if phases[name].start_step is not None else "start_epoch"
        start, length = phases[name][key] or 0, total[key]
        share = start / length if length else place / len(phases)
        phases[name].start_step, phases[name].start_epoch = int(share * steps), None
    changes = (rate for phase in phases.values() for rate in phase.groups.values())
    for part in (*c.optimizer.groups.values(), *phases.values(), *changes):
        part.schedule.warmup_steps = min(20, part.schedule.warmup_steps)
        if part.lr is not None:
            part.lr *= 2e-3 / c.optimizer.lr


def _start(phase: Editable) -> float:
    return phase.start_step or phase.start_epoch or 0


def _own_evaluators(evals: Editable) -> dict[str, Editable]:
    """Evaluators that `runlocal` has no other for, which shrink themselves."""
    out = {}
    for name, group in evals.items():
        small = schema.parse_part(Evaluator, group, f"config.evals.{name}").runlocal()
        if small is not None:
            out[name] = schema.to_config_dict(small)
    return out


def _graded_scenes(c: Editable, scored: bool, modes: tuple[str, ...]) -> Editable:
    """Generated judged pairs, with queries and documents that training has not seen."""
    c.labels.update(query="query_id", document="document_id")
    if scored:
        c.labels.update(score="score", s_max=100.0)
    for name, group in list(c.fields.items()):
        part = schema.parse_part(Field, group, f"config.fields.{name}")
        c.fields[name] = schema.to_config_dict(part.in_graded_scenes())
    for split in ("in_domain", "novel_query", "novel_document", "zero_shot"):
        ranking = configs.Ranking(modes=modes, data=configs.GradedScenes(split=split))
        c.evals[split] = schema.to_config_dict(ranking)
    return c
