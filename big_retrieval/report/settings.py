"""Configuration, data and environment of one run, or of two next to each other."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from big_retrieval.config import Config, schema
from big_retrieval.config.older_runs import complete
from big_retrieval.report.html import Html, table, tag
from big_retrieval.report.numbers import NONE, count_of, duration, number
from big_retrieval.report.read import MALFORMED, RunFiles, known_facts
from big_retrieval.report.results import chip
from big_retrieval.runtime.chips import gib

TAGS = ("type",)  # keys that choose the variant of a group
IN_SIGHT = 12  # keys of a table that is not folded
Flat = dict[str, Any]


def flat(tree: Any, path: str = "") -> Flat:
    """Returns the leaves of nested dictionaries by their dotted paths."""
    if not isinstance(tree, Mapping) or not tree:
        return {path: tree} if path else {}
    out: Flat = {}
    for key, value in sorted(tree.items()):
        out |= flat(value, f"{path}.{key}" if path else str(key))
    return out


def defaults(config: Mapping[str, Any]) -> Flat:
    """Returns the defaults of a saved config's groups, {} if this version does not know them.

    A group's tag has the default of a plain `Config`, and no default if that has no such group.
    """
    try:
        full = complete(Config, _only_tags(config))
    except MALFORMED:
        return {}
    groups, plain = flat(schema.as_saved(full)), flat(schema.as_saved(Config()))
    return {k: v for k, v in groups.items() if not _is_tag(k)} | {
        k: v for k, v in plain.items() if _is_tag(k)
    }


def _only_tags(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _only_tags(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if isinstance(value, Mapping) or key in TAGS
    }


def _is_tag(key: str) -> bool:
    return key.rsplit(".", 1)[-1] in TAGS


def value_text(value: Any) -> str:
    """Formats a configuration value as on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def configuration(runs: Sequence[RunFiles]) -> Html:
    """Tables of the keys that differ between two runs or from the defaults, and of all keys."""
    if not any(run.config for run in runs):
        return tag("p", "There is no config.json.", class_="empty")
    configs, two = [flat(run.config) for run in runs], len(runs) == 2
    heads = ["key", *((chip(i) for i in range(2)) if two else ["value"])]
    every = sorted({key for config in configs for key in config})
    parts: list[Html] = []
    if two:
        first, second = configs
        differing = [key for key in every if first.get(key) != second.get(key)]
        parts += [tag("h3", "What differs between A and B"), _key_table(heads, differing, configs)]
    bases = [defaults(run.config) for run in runs]
    changed = {
        key
        for config, base in zip(configs, bases, strict=True)
        for key, value in config.items()
        if key not in base or base[key] != value
    }
    columns = [*configs, bases[-1] | bases[0]]
    parts.append(tag("h3", "What differs from the defaults"))
    parts.append(_key_table([*heads, "default"], sorted(changed), columns))
    whole = table(heads, _key_rows(every, configs))
    parts.append(tag("details", tag("summary", f"All {len(every):,} keys"), whole))
    return tag("div", parts)


def _key_table(heads: Sequence[Any], keys: Sequence[str], columns: Sequence[Flat]) -> Html:
    """Builds a table of keys, folded if it is long."""
    if not keys:
        return tag("p", "Nothing.")
    whole = table(heads, _key_rows(keys, columns))
    if len(keys) <= IN_SIGHT:
        return whole
    return tag("details", tag("summary", count_of(len(keys), "key")), whole)


def _key_rows(keys: Sequence[str], columns: Sequence[Flat]) -> list[list[Any]]:
    return [
        [
            tag("code", key),
            *(tag("code", tag("bdi", value_text(c[key]))) if key in c else NONE for c in columns),
        ]
        for key in keys
    ]


def data(runs: Sequence[RunFiles]) -> Html:
    """Tables of sources, records, and damaged records."""
    rows: list[list[Any]] = [["training records", *(_source(run) for run in runs)]]
    evals = [run.config.get("evals", {}) for run in runs]
    for name in sorted({name for by_name in evals for name in by_name}):
        sources = (by_name.get(name, {}).get("data") for by_name in evals)
        rows.append([f"evaluator {name}", *map(described, sources)])
    rows.append(["vocabulary", *(number(run.lookup("vocab_size")) for run in runs)])
    rows.append(["damaged records", *(number(run.damaged_count) for run in runs)])
    parts = [table(_heads(runs), rows)]
    for run in runs:
        if run.damaged:
            lines = [
                [number(row.get("record")), str(row.get("place", "")), str(row.get("why", ""))]
                for row in run.damaged
            ]
            named = "" if run.damaged_count == len(lines) else f", the first {len(lines)}"
            parts.append(tag("h3", f"Damaged records of {run.name}{named}"))
            parts.append(table(["record", "place", "what is wrong"], lines))
    return tag("div", parts)


def _heads(runs: Sequence[RunFiles]) -> list[Any]:
    return ["", *(chip(i) for i in range(2))] if len(runs) == 2 else ["", ""]


def described(source: Mapping[str, Any] | None) -> str:
    """Formats a source of the config in one line: its type and the keys that are set."""
    if source is None:
        return NONE
    known = {k: v for k, v in flat(source).items() if k not in ("type", "how_to_get")}
    values = (f"{k} {value_text(v)}" for k, v in known.items() if v not in (None, "", [], 0))
    return ", ".join((str(source.get("type", "?")), *values))


def _source(run: RunFiles) -> str:
    records = run.lookup("records")
    count = "" if records is None else f"{number(records)} records, "
    return f"{count}{described(run.config.get('data'))}"


def environment(runs: Sequence[RunFiles]) -> Html:
    """Tables of versions, devices, command line, starts and plan."""
    columns = [_machine(run) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(column.get(key, NONE) for column in columns)] for key in keys]
    parts = [table(_heads(runs), rows)]
    for run in runs:
        starts = run.environment.get("starts", [])
        if len(starts) > 1:
            lines = [
                [str(x.get("time", NONE)), number(x.get("resumed_from") or 0), _devices(x)]
                for x in starts
            ]
            parts.append(tag("h3", f"Starts of {run.name}"))
            parts.append(table(["time (UTC)", "from step", "devices"], lines))
    return tag("div", parts)


def _devices(start: Mapping[str, Any]) -> str:
    if "devices" not in start:
        return NONE
    processes = start.get("processes", 1)
    together = "" if processes == 1 else f", {number(processes)} processes"
    return f"{number(start['devices'])} × {start.get('device', 'device')}{together}"


def _processor(run: RunFiles) -> str:
    cores = run.start["cores"]
    return f"{run.start['processor']}, {count_of(cores, 'core')} of it usable"


def _planned_memory(run: RunFiles) -> str:
    words = {True: "fits", False: "does not fit"}.get(run.plan["fits"], "fit unknown")
    return f"{gib(run.plan['per_device_bytes']['total'])}, {words}"


def _planned_throughput(run: RunFiles) -> str:
    return f"{number(run.plan['expected']['pairs_per_second'] + 0.0, 3)} pairs/s"


MACHINE: tuple[tuple[str, Callable[[RunFiles], Any]], ...] = (
    ("run folder", lambda run: tag("code", str(run.folder))),
    ("command", lambda run: tag("code", run.start["command"])),
    ("last start (UTC)", lambda run: run.start["time"]),
    ("devices", lambda run: _devices(run.start or run.results)),
    ("mesh", lambda run: ", ".join(f"{x} {number(n)}" for x, n in run.start["mesh"].items())),
    ("platform", lambda run: run.start["platform"]),
    ("processor", _processor),
    (
        "commit of big_retrieval",
        lambda run: run.start["commit"] and tag("code", run.start["commit"]),
    ),
    ("time of the last start", lambda run: duration(run.results["seconds"])),
    ("parameters' SHA-256", lambda run: tag("code", run.results["params_sha256"])),
    ("planned for", lambda run: run.plan["topology"]),
    ("planned memory of a device", _planned_memory),
    ("planned throughput", _planned_throughput),
)


def _machine(run: RunFiles) -> dict[str, Any]:
    return known_facts(run, MACHINE) | dict(sorted((run.lookup("versions") or {}).items()))
