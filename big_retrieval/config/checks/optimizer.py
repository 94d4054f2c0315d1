"""Checks of the optimizer that need neither the names of parameters nor the number of records."""

import dataclasses
import re
from collections.abc import Iterator

from big_retrieval.config import Config, ParameterGroup, Phase, Schedule
from big_retrieval.config.batch_norms import has_modes, in_mode, parts_of
from big_retrieval.config.optimizer import SAME

PATH = "config.optimizer"
_PLAIN = Schedule(type=SAME)


def optimizer(c: Config) -> Iterator[str]:
    """Rules, schedules, groups and phases."""
    o = c.optimizer
    for key, rule in (
        ("rule", o.rule),
        *((f"groups.{n}.rule", g.rule) for n, g in o.groups.items()),
    ):
        if rule.type == SAME and key == "rule":
            yield f"{PATH}.rule.type is {SAME!r}, which only groups can be; name a rule."
        yield from rule.check(c, f"{PATH}.{key}")
    for key, schedule in o.schedules():
        yield from _schedule(schedule, f"{PATH}.{key}", group=key != "schedule")
    for name, group in o.groups.items():
        yield from _group(group, f"{PATH}.groups.{name}")
    for name, phase in o.phases.items():
        yield from _phase(c, phase, f"{PATH}.phases.{name}")
    yield from _starts(c)


def _schedule(s: Schedule, path: str, *, group: bool) -> Iterator[str]:
    if s.type == SAME:
        if not group:
            yield f"{path}.type is {SAME!r}, which only groups and phases can be; name a schedule."
        changed = [
            f.name for f in dataclasses.fields(s) if getattr(s, f.name) != getattr(_PLAIN, f.name)
        ]
        if changed:
            yield (
                f"{path}.{changed[0]} is set, but {path}.type is {SAME!r}: set the type, too, such "
                "as to 'cosine'."
            )


def _group(group: ParameterGroup, path: str) -> Iterator[str]:
    if not group.pattern:
        yield f"{path}.pattern is empty; give a regular expression such as 'image/.*'."
    yield from _pattern(group.pattern, f"{path}.pattern")
    if group.lr is not None and group.lr_factor != 1:
        yield f"{path}.lr and {path}.lr_factor are both set; keep one of them."


def _phase(c: Config, phase: Phase, path: str) -> Iterator[str]:
    yield from _pattern(phase.trainable, f"{path}.trainable")
    yield from _pattern(phase.frozen, f"{path}.frozen")
    for name, rate in phase.groups.items():
        if name not in c.optimizer.groups:
            known = ", ".join(sorted(c.optimizer.groups)) or "none"
            yield f"{path}.groups.{name} is no group of {PATH}.groups; known: {known}."
        if rate.lr is not None and rate.lr_factor is not None:
            yield f"{path}.groups.{name} has both lr and lr_factor; keep one of them."
    if phase.batch_stats == "tower":
        return
    parts = {place: part for place, part in parts_of(c).items() if has_modes(part)}
    if not parts:
        yield (
            f"{path}.batch_stats is {phase.batch_stats!r}, but no tower or head has batch norms: "
            "leave it at 'tower'."
        )
    for place, part in parts.items():
        sliced = c.microbatch not in (None, c.batch_size)
        if sliced and in_mode(part, phase.batch_stats).whole_batch:
            yield (
                f"{path}.batch_stats is {phase.batch_stats!r}: the batch norms of {place} then "
                f"need the whole batch at once; set {place}.batch_stats to 'slice', or drop "
                "config.microbatch."
            )


def _starts(c: Config) -> Iterator[str]:
    """When phases begin, as far as that is known without the number of records."""
    seen: dict[tuple[str, float], str] = {}
    for name, phase in c.optimizer.phases.items():
        path = f"{PATH}.phases.{name}"
        given = {k: getattr(phase, k) for k in ("start_step", "start_epoch")}
        given = {k: x for k, x in given.items() if x is not None}
        if len(given) != 1:
            wrong = "are both set; keep one of them" if given else "are not set; give one of them"
            yield f"{path}.start_step and {path}.start_epoch {wrong}."
            continue
        ((key, start),) = given.items()
        if (key, start) in seen:
            yield (
                f"{path}.{key} is {start}, where {PATH}.phases.{seen[key, start]} begins, too: "
                "phases must not overlap; let one of them begin later."
            )
        seen[key, start] = name
        length = "total_steps" if key == "start_step" else "total_epochs"
        total = getattr(c, length)
        if length == "total_epochs" and c.total_steps is not None:
            total = None  # total_steps wins
        if total is not None and start >= total:
            yield (
                f"{path}.{key} is {start}, but the run ends at config.{length} {total}: let the "
                "phase begin earlier, or train for longer."
            )


def _pattern(pattern: str, path: str) -> Iterator[str]:
    try:
        re.compile(pattern)
    except re.error as problem:
        yield f"{path}: {pattern!r} is not a regular expression: {problem}."
