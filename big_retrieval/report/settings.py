"""Configuration, data and environment of one run, or of two next to each other."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.config import Config, schema
from big_retrieval.report.html import Html, table, tag
from big_retrieval.report.numbers import NONE, duration, is_number, number, size
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import chip

TAGS = ("type", "kind")  # the keys that say which variant a group is
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
        own = flat(json.loads(json.dumps(schema.complete(Config, tags(config)))))
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
        parts.append(table(["key", *marks], rows) if rows else tag("p", "Nothing."))
    bases = [defaults(run.config) for run in runs]
    keys = sorted(
        {k for o, base in zip(own, bases, strict=True) for k, v in o.items()
         if k not in base or base[k] != v}
    )  # fmt: skip
    base = bases[-1] | bases[0]
    parts.append(tag("h3", "What differs from the defaults"))
    rows = _values(keys, [*own, base])
    head = ["key", *marks, "default"]
    parts.append(table(head, rows) if rows else tag("p", "Nothing."))
    every = _values(sorted({key for o in own for key in o}), own)
    whole = table(["key", *marks], every)
    parts.append(tag("details", tag("summary", f"All {len(every):,} keys"), whole))
    return tag("div", parts)


def data(runs: Sequence[RunFiles]) -> Html:
    """Sources, records, and the damaged ones among them."""
    rows: list[list[Any]] = [["training records", *(_source(run) for run in runs)]]
    names = sorted({name for run in runs for name in _evals(run)})
    for name in names:
        rows.append([f"evaluator {name}", *(described(_evals(run).get(name)) for run in runs)])
    rows.append(["vocabulary", *(number(_known(run, "vocab_size")) for run in runs)])
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


def _known(run: RunFiles, key: str) -> Any:
    """A value that the start of the run recorded, or else its newest checkpoint."""
    return run.start.get(key, run.meta.get(key))


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
    records = _known(run, "records")
    count = f"{number(records)} records, " if is_number(records) else ""
    return f"{count}{described(run.config.get('data'))}"


def environment(runs: Sequence[RunFiles]) -> Html:
    """Versions, devices, command line, starts, plan."""
    columns = [_machine(run) for run in runs]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = [[key, *(column.get(key, NONE) for column in columns)] for key in keys]
    parts = [table(_heads(runs), rows)]
    for run in runs:
        starts = run.environment.get("starts")
        if isinstance(starts, list) and len(starts) > 1:
            lines = [
                [str(s.get("time", NONE)), _from(s), _devices(s)]
                for s in starts
                if isinstance(s, Mapping)
            ]
            parts.append(tag("h3", f"Starts of {run.name}"))
            parts.append(table(["time (UTC)", "from step", "devices"], lines))
    return tag("div", parts)


def _from(start: Mapping[str, Any]) -> str:
    return number(start.get("resumed_from") or 0)


def _devices(start: Mapping[str, Any]) -> str:
    if "devices" not in start:
        return NONE
    processes = start.get("processes", 1)
    shared = "" if processes == 1 else f", {number(processes)} processes"
    return f"{number(start['devices'])} × {start.get('device', 'device')}{shared}"


def _machine(run: RunFiles) -> dict[str, Any]:
    start, out = run.start, {}
    out["run folder"] = tag("code", str(run.folder))
    if start:
        out["command"] = tag("code", str(start.get("command", NONE)))
        out["last start (UTC)"] = str(start.get("time", NONE))
        out["devices"] = _devices(start)
        mesh = start.get("mesh")
        if isinstance(mesh, Mapping):
            out["mesh"] = ", ".join(f"{axis} {number(n)}" for axis, n in mesh.items())
        out["platform"] = str(start.get("platform", NONE))
    elif "devices" in run.results:
        out["devices"] = number(run.results["devices"])
    if is_number(run.results.get("seconds")):
        out["time of the last start"] = duration(run.results["seconds"])
    versions = start.get("versions", run.meta.get("versions"))
    if isinstance(versions, Mapping):
        for name, version in sorted(versions.items()):
            out[str(name)] = str(version)
    if "params_sha256" in run.results:
        out["parameters' SHA-256"] = tag("code", str(run.results["params_sha256"]))
    return out | _plan(run.plan)


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What plan.json expected."""
    if not plan:
        return {}
    out: dict[str, Any] = {"planned for": str(plan.get("topology", NONE))}
    sizes, expected = plan.get("per_device_bytes"), plan.get("expected")
    total = sizes.get("total") if isinstance(sizes, Mapping) else None
    if is_number(total):
        fits = plan.get("fits")
        verdict = "fits" if fits is True else "does not fit" if fits is False else "fit unknown"
        out["planned memory of a device"] = f"{size(total)}, {verdict}"
    if isinstance(expected, Mapping) and is_number(expected.get("pairs_per_second")):
        out["planned throughput"] = f"{number(expected['pairs_per_second'], 3)} pairs/s"
    return out
