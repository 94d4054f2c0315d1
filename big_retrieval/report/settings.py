"""Configuration, data and environment of one run, or of two next to each other."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from big_retrieval.config import Config, schema
from big_retrieval.config.older_runs import complete
from big_retrieval.report.html import Html, table, tag
from big_retrieval.report.numbers import NONE, count_of, duration, is_number, number, size
from big_retrieval.report.read import RunFiles, told
from big_retrieval.report.results import chip

TAGS = ("type", "kind")  # the keys that say which variant a group is
IN_SIGHT = 12  # keys of a table that is not folded
Flat = dict[str, Any]


def flat(tree: Any, path: str = "") -> Flat:
    """The leaves of nested dictionaries by their dotted path."""
    if not isinstance(tree, Mapping) or not tree:
        return {path: tree} if path else {}
    out: Flat = {}
    for key, value in sorted(tree.items()):
        out |= flat(value, f"{path}.{key}" if path else str(key))
    return out


def defaults(config: Mapping[str, Any]) -> Flat:
    """The defaults of the groups that a saved config has, as far as this version knows them.

    A group's tag has the default of a plain `Config`, and no default where that has no such group.
    """

    def tags(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: tags(value) if isinstance(value, Mapping) else value
            for key, value in tree.items()
            if isinstance(value, Mapping) or key in TAGS
        }

    try:
        own = flat(json.loads(json.dumps(complete(Config, tags(config)))))
    except (TypeError, ValueError, KeyError, AttributeError, StopIteration):  # of another version
        return {}
    plain = flat(json.loads(json.dumps(schema.to_plain(Config()))))
    return {k: v for k, v in own.items() if not _is_tag(k)} | {
        k: v for k, v in plain.items() if _is_tag(k)
    }


def _is_tag(key: str) -> bool:
    return key.rsplit(".", 1)[-1] in TAGS


def value_text(value: Any) -> str:
    """A configuration value as it is written on the command line."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _values(keys: Sequence[str], columns: Sequence[Flat]) -> list[list[Any]]:
    return [
        [tag("code", key), *(_cell(c[key]) if key in c else NONE for c in columns)] for key in keys
    ]


def _cell(value: Any) -> Html:
    return tag("code", tag("bdi", value_text(value)))


def configuration(runs: Sequence[RunFiles]) -> Html:
    """What differs between two runs, what differs from the defaults, and all of it."""
    if not any(run.config for run in runs):
        return tag("p", "There is no config.json.", class_="empty")
    own, two = [flat(run.config) for run in runs], len(runs) == 2
    marks = [chip(i) for i in range(2)] if two else ["value"]
    parts: list[Html] = []
    if two:
        keys = sorted({k for o in own for k in o if own[0].get(k) != own[1].get(k)})
        rows = _values(keys, own)
        parts.append(tag("h3", "What differs between A and B"))
        differing = table(["key", *marks], rows)
        parts.append(_folded(differing, len(rows)) if rows else tag("p", "Nothing."))
    bases = [defaults(run.config) for run in runs]
    keys = sorted(
        {k for o, base in zip(own, bases, strict=True) for k, v in o.items()
         if k not in base or base[k] != v}
    )  # fmt: skip
    base = bases[-1] | bases[0]
    parts.append(tag("h3", "What differs from the defaults"))
    rows = _values(keys, [*own, base])
    head = ["key", *marks, "default"]
    parts.append(_folded(table(head, rows), len(rows)) if rows else tag("p", "Nothing."))
    every = _values(sorted({key for o in own for key in o}), own)
    whole = table(["key", *marks], every)
    parts.append(tag("details", tag("summary", f"All {len(every):,} keys"), whole))
    return tag("div", parts)


def _folded(whole: Html, rows: int) -> Html:
    """A table, behind a fold where it is long."""
    if rows <= IN_SIGHT:
        return whole
    return tag("details", tag("summary", count_of(rows, "key")), whole)


def data(runs: Sequence[RunFiles]) -> Html:
    """Sources, records, and the damaged ones among them."""
    rows: list[list[Any]] = [["training records", *(_source(run) for run in runs)]]
    names = sorted({name for run in runs for name in _evals(run)})
    for name in names:
        rows.append([f"evaluator {name}", *(described(_evals(run).get(name)) for run in runs)])
    rows.append(["vocabulary", *(number(run.known("vocab_size")) for run in runs)])
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


def _evals(run: RunFiles) -> dict[str, Any]:
    evals = run.config.get("evals")
    found = evals.items() if isinstance(evals, Mapping) else ()
    return {name: ev.get("data") for name, ev in found if isinstance(ev, Mapping)}


def described(source: Any) -> str:
    """A source of the config in one line: its kind and what of it is set."""
    if not isinstance(source, Mapping):
        return NONE
    known = {k: v for k, v in flat(source).items() if k not in ("type", "how_to_get")}
    told = (f"{k} {value_text(v)}" for k, v in known.items() if v not in (None, "", [], 0))
    return ", ".join((str(source.get("type", "?")), *told))


def _source(run: RunFiles) -> str:
    records = run.known("records")
    count = f"{number(records)} records, " if is_number(records) else ""
    return f"{count}{described(run.config.get('data'))}"


def environment(runs: Sequence[RunFiles]) -> Html:
    """Versions, devices, command line, starts, plan."""
    columns = [_machine(run) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(column.get(key, NONE) for column in columns)] for key in keys]
    parts = [table(_heads(runs), rows)]
    for run in runs:
        starts = run.environment.get("starts")
        if isinstance(starts, list) and len(starts) > 1:
            lines = [
                [str(s.get("time", NONE)), number(s.get("resumed_from") or 0), _devices(s)]
                for s in starts
                if isinstance(s, Mapping)
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


def _fits(plan: Mapping[str, Any]) -> str:
    fits = plan.get("fits")
    words = "fits" if fits is True else "does not fit" if fits is False else "fit unknown"
    return f"{size(plan['per_device_bytes']['total'])}, {words}"


def _rate(plan: Mapping[str, Any]) -> str:
    return f"{number(plan['expected']['pairs_per_second'] + 0.0, 3)} pairs/s"


MACHINE: tuple[tuple[str, Callable[[RunFiles], Any]], ...] = (
    ("run folder", lambda run: tag("code", str(run.folder))),
    ("command", lambda run: tag("code", str(run.start["command"]))),
    ("last start (UTC)", lambda run: str(run.start["time"])),
    ("devices", lambda run: _devices(run.start or run.results)),
    (
        "mesh",
        lambda run: ", ".join(f"{axis} {number(n)}" for axis, n in run.start["mesh"].items()),
    ),
    ("platform", lambda run: str(run.start["platform"])),
    ("processor", _processor),
    (
        "commit of big_retrieval",
        lambda run: run.start["commit"] and tag("code", str(run.start["commit"])),
    ),
    ("time of the last start", lambda run: duration(run.results["seconds"])),
    ("parameters' SHA-256", lambda run: tag("code", str(run.results["params_sha256"]))),
    ("planned for", lambda run: str(run.plan["topology"])),
    ("planned memory of a device", lambda run: _fits(run.plan)),
    ("planned throughput", lambda run: _rate(run.plan)),
)


def _machine(run: RunFiles) -> dict[str, Any]:
    versions = run.known("versions")
    named = sorted(versions.items()) if isinstance(versions, Mapping) else ()
    return told(run, MACHINE) | {str(name): str(version) for name, version in named}
