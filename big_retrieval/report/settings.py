"""Configuration, data and environment of one run, or of two side by side."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.config import Config, Plugin, schema
from big_retrieval.config.foreign import make_foreign
from big_retrieval.errors import UserError
from big_retrieval.report.html import Html, html_table, tag
from big_retrieval.report.numbers import NONE, duration, number
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import chip
from big_retrieval.runtime.messages import count_of

IN_SIGHT = 12  # maximum number of keys in a table that is not folded
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
    """Returns default values of a saved config's keys.

    The keys of a group have the defaults of the group's saved type; `type` itself has its value in
    `Config()`. If another version saved a group or type that this version does not have, all
    values are from `Config()`.
    """

    def unknown(part_kind: Any, group: Any, path: str) -> Any:
        return make_foreign(part_kind, group, Plugin(), path)

    plain = flat(schema.as_saved(Config()))
    try:
        parsed = schema.parse(Config, _only_types(config), unknown=unknown)
    except UserError:
        return plain
    groups = flat(schema.as_saved(parsed))
    no_types = {key: value for key, value in groups.items() if not f".{key}".endswith(".type")}
    return no_types | {key: value for key, value in plain.items() if f".{key}".endswith(".type")}


def _only_types(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _only_types(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if isinstance(value, Mapping) or key == "type"
    }


def value_text(value: Any) -> str:
    """Formats a configuration value as on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def configuration(runs: Sequence[RunFiles]) -> Html:
    """Builds tables of keys that differ between two runs or from the defaults, and of all keys."""
    configs, two = [flat(run.config) for run in runs], len(runs) == 2
    heads = ["key", *((chip(i) for i in range(2)) if two else ["value"])]
    keys = sorted({key for config in configs for key in config})
    parts: list[Html] = []
    if two:
        differing = [key for key in keys if configs[0].get(key) != configs[1].get(key)]
        parts.append(tag("h3", "Differences between A and B"))
        parts.append(_key_table(heads, differing, configs, IN_SIGHT))
    bases = [defaults(run.config) for run in runs]
    changed = {
        key
        for config, base in zip(configs, bases, strict=True)
        for key, value in config.items()
        if key not in base or base[key] != value
    }
    columns = [*configs, bases[-1] | bases[0]]
    parts.append(tag("h3", "Differences from the defaults"))
    parts.append(_key_table([*heads, "default"], sorted(changed), columns, IN_SIGHT))
    return tag("div", parts, _key_table(heads, keys, configs))


def _key_table(
    heads: Sequence[Any], keys: Sequence[str], columns: Sequence[Flat], in_sight: int = 0
) -> Html:
    """Builds a table of keys, folded if it has more than `in_sight` keys."""
    if not keys:
        return tag("p", "Nothing.")

    def value(key: str, column: Flat) -> str:
        return tag("code", tag("bdi", value_text(column[key]))) if key in column else NONE

    content = html_table(heads, [[tag("code", k), *(value(k, c) for c in columns)] for k in keys])
    if len(keys) <= in_sight:
        return content
    name = count_of(len(keys), "key") if in_sight else f"All {len(keys):,} keys"
    return tag("details", tag("summary", name), content)


def data(runs: Sequence[RunFiles]) -> Html:
    """Builds tables of sources, records, and damaged records."""
    evals = [run.config.get("evals", {}) for run in runs]
    rows: list[list[Any]] = [["training records", *map(_training_data, runs)]]
    for name in sorted({name for by_name in evals for name in by_name}):
        sources = (by_name.get(name, {}).get("data") for by_name in evals)
        rows.append([f"evaluator {name}", *map(described, sources)])
    rows.append(["vocabulary", *(number(run.lookup("vocab_size")) for run in runs)])
    rows.append(["damaged records", *(number(run.damaged_count) for run in runs)])
    parts = [html_table(_heads(runs), rows)]
    for run in runs:
        if run.damaged:
            body = [[number(row["record"]), row["place"], row["why"]] for row in run.damaged]
            named = "" if run.damaged_count == len(body) else f", the first {len(body)}"
            parts.append(tag("h3", f"Damaged records of {run.name}{named}"))
            parts.append(html_table(["record", "location", "damage"], body))
    return tag("div", parts)


def _heads(runs: Sequence[RunFiles]) -> list[Any]:
    return ["", *(chip(i) for i in range(2))] if len(runs) == 2 else ["", ""]


def described(source: Mapping[str, Any] | None) -> str:
    """Formats a source of the config in one line: its type and the keys that are set."""
    if source is None:
        return NONE
    keys = {k: v for k, v in flat(source).items() if k not in ("type", "how_to_get")}
    values = (f"{k} {value_text(v)}" for k, v in keys.items() if v not in (None, "", [], 0))
    return ", ".join((source["type"], *values))


def _training_data(run: RunFiles) -> str:
    records = run.lookup("records")
    count = "" if records is None else f"{number(records)} records, "
    return f"{count}{described(run.config['data'])}"


def environment(runs: Sequence[RunFiles]) -> Html:
    """Builds tables of versions, devices, command line and starts."""
    columns = [_machine(run) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(column.get(key, NONE) for column in columns)] for key in keys]
    parts = [html_table(_heads(runs), rows)]
    for run in runs:
        starts = run.environment.get("starts", [])
        if len(starts) > 1:
            body = [[x["time"], number(x["resumed_from"] or 0), _devices(x)] for x in starts]
            parts.append(tag("h3", f"Starts of {run.name}"))
            parts.append(html_table(["time (UTC)", "from step", "devices"], body))
    return tag("div", parts)


def _devices(start: Mapping[str, Any]) -> str:
    processes = start["processes"]
    together = "" if processes == 1 else f", {number(processes)} processes"
    return f"{number(start['devices'])} × {start['device']}{together}"


def _machine(run: RunFiles) -> dict[str, Any]:
    facts: dict[str, Any] = {"run folder": tag("code", str(run.folder))}
    if start := run.start:
        facts |= {
            "command": tag("code", start["command"]),
            "last start (UTC)": start["time"],
            "devices": _devices(start),
            "mesh": ", ".join(f"{axis} {number(size)}" for axis, size in start["mesh"].items()),
            "platform": start["platform"],
            "processor": f"{start['processor']}, {count_of(start['cores'], 'usable core')}",
        }
        if start["commit"]:
            facts["commit of big_retrieval"] = tag("code", start["commit"])
    if run.results:
        facts["time of the last start"] = duration(run.results["seconds"])
        facts["parameters' SHA-256"] = tag("code", run.results["params_sha256"])
    return facts | dict(sorted((run.lookup("versions") or {}).items()))
