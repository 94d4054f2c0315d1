"""Overrides of the command line: --config.KEY=VALUE changes a key of a config."""

import ast
import contextlib
import dataclasses
import functools
import logging
import operator
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_collections
from ml_collections.config_flags import tuple_parser

from big_retrieval.cli import mistakes
from big_retrieval.cli.values import EXPECTED, parse_value
from big_retrieval.config import Config, annotations, schema
from big_retrieval.config.sources import Source
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError

log = logging.getLogger(__name__)
LENGTHS = ("total_steps", "total_examples", "total_epochs")


@dataclass(frozen=True)
class Override:
    """One override of the command line."""

    key: str  # path of the key, such as `optimizer.lr`
    text: str | None  # text of the value; None for a flag without a value, such as --config.KEY
    is_negated: bool  # True for --noconfig.KEY

    @property
    def path(self) -> list[str]:
        return self.key.split(".")

    @property
    def is_none(self) -> bool:
        """True if the override sets None, or drops an evaluator: --config.evals.NAME=."""
        is_evaluator = self.path[0] == "evals" and len(self.path) == 2
        return self.text == "None" or (is_evaluator and self.text == "")


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Returns the overrides of arguments such as --config.KEY=VALUE or --config.KEY VALUE."""
    overrides: list[Override] = []
    for arg in arguments:
        match = re.fullmatch(r"--?(no)?config\.([^=]+)(?:=(.*))?", arg, re.DOTALL)
        if match and match[1] and match[3] is not None:
            raise UserError(f"{arg}: --no takes no value. Use --config.{match[2]}=VALUE.")
        if match:
            overrides.append(Override(match[2], match[3], bool(match[1])))
        elif overrides and overrides[-1].text is None and not overrides[-1].is_negated:
            overrides[-1] = dataclasses.replace(overrides[-1], text=arg)
        else:
            raise UserError(mistakes.unexpected_word(arg, 0, ""))
    return overrides


def apply_overrides(config: Any, overrides: Sequence[Override]) -> None:
    """Sets the keys of a config file's ConfigDict; a UserError names an unknown or wrong key."""
    _open_topology(config, {override.key for override in overrides})
    for override in overrides:
        _add_entry(config, override.path)
        with _naming(override):
            _switch_type(config, override.path, override.text or "")
    for override in overrides:
        _check_key(config, override)
    tuples: dict[str, Any] = {}  # repeated flags of a tuple append to it
    for override in overrides:
        if override.is_none:
            continue
        group = _group(config, override.path)
        value = _value(override, group.get_type(override.path[-1]))
        if isinstance(value, tuple):
            value = tuples[override.key] = tuples.get(override.key, ()) + value
        with _naming(override):
            group[override.path[-1]] = value
    with config.unlocked():
        for override in overrides:
            if override.is_none:
                _set_none(config, override.path)
        _keep_one_length(config, {x.key for x in overrides if not x.is_none})


@contextlib.contextmanager
def _naming(override: Override) -> Iterator[None]:
    """Adds the name of the override to type errors of ConfigDict."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UserError(f"--config.{override.key}: {error}") from None


def _group(config: Any, path: Sequence[str]) -> Any:
    return functools.reduce(operator.getitem, path[:-1], config)


def _value(override: Override, hint: Any) -> Any:
    """Returns the value of an override for a key of the type `hint`; object for several types."""
    name, text = f"config.{override.key}", override.text
    if text is None and hint not in (bool, object):
        raise UserError(f"--{name} has no value; write --{name}=VALUE.")
    if text is None:
        return not override.is_negated
    if hint in (str, *EXPECTED):
        return parse_value(name, text, hint)
    if hint is tuple:
        try:
            return tuple_parser.TupleParser().parse(text)
        except ValueError:
            raise UserError(f"{name} is {text!r}; it must be a tuple, such as (1, 2).") from None
    try:
        value = ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (SyntaxError, ValueError):
        value = text
    if hint is not ml_collections.ConfigDict:
        return value
    if not isinstance(value, dict):
        expected = "a group of keys: set its single keys instead"
        raise UserError(f"{name} is {text!r}; it must be {expected}.")
    return ml_collections.ConfigDict(value)


def _open_topology(config: Any, keys: Collection[str]) -> None:
    """Makes `config.topology` a group if the command line sets its keys, text if it replaces it."""
    named = config.get("topology")
    with config.ignore_type(), config.unlocked():
        if "topology" in keys:  # replaced as a whole
            config.topology = ""
        elif isinstance(named, str) and any(key.startswith("topology.") for key in keys):
            config.topology = schema.to_config_dict(topology_part(named))


def _add_entry(config: Any, names: Sequence[str]) -> None:
    """Adds a new entry of `init`, `trackers`, or the optimizer's `groups` and `phases`."""
    cls: Any = Config
    node: Any = config
    while len(names) > 1 and dataclasses.is_dataclass(cls):
        name, *names = names
        entry_kind = annotations.entry_kind(cls, name, names[0])
        cls = annotations.hints_of(cls).get(name)
        node = node.get(name)
        if not isinstance(node, ml_collections.ConfigDict):
            return
        if entry_kind is not None:
            entry, *names = names
            if names and entry not in node:
                with config.unlocked():
                    node[entry] = schema.to_config_dict(entry_kind())
            cls, node = entry_kind, node.get(entry)


def _switch_type(config: Any, path: Sequence[str], value: str) -> None:
    """Converts a group to the type that the command line gives, so that its keys can be set.

    Keys that both types have keep their values, except in a source: there, a default of the old
    type becomes the default of the new type. New keys, and those of another kind of value, get
    their defaults.
    """
    *path, last = path
    if last != "type" or not path:
        return
    try:
        parent = _group(config, path)
        old, variants = parent[path[-1]], annotations.variants_at(Config, config, path)
        old_type = old.type
    except (AttributeError, KeyError, TypeError):  # `_check_key` reports unknown keys
        return
    if value not in variants or old_type == value:
        return
    new, cls = schema.to_config_dict(variants[value]()), variants.get(str(old_type))
    defaults = schema.to_config_dict(cls()) if cls and issubclass(cls, Source) else {}
    for name in set(old) & set(new) - {"type"}:
        if name not in defaults or old[name] != defaults[name]:  # e.g. text="txt" is for tars
            with contextlib.suppress(TypeError):
                new[name] = old[name]
    with config.unlocked():
        parent[path[-1]] = new


def _check_key(config: Any, override: Override) -> None:
    """Raises if an override names no key, or negates a key that is not a bool."""
    node, path = config, "config"
    for name in override.path:
        if not isinstance(node, ml_collections.ConfigDict):
            raise UserError(f"config.{override.key}: {path} is a single value. Set --{path}=VALUE.")
        if name not in node:
            raise UserError(schema.unknown_key(path, name, node, node.to_dict()))
        node, path = node[name], f"{path}.{name}"
    if override.is_negated and not isinstance(node, bool):
        raise UserError(f"--no{path}: {path} is not a True or False. Set it as --{path}=VALUE.")


def _set_none(config: Any, path: Sequence[str]) -> None:
    """Sets a key to None; drops an evaluator and the best metric that it measures."""
    group, last = _group(config, path), path[-1]
    if path[:-1] != ["evals"]:
        group[last] = None
        return
    del group[last]
    if config.best_metric.split("/")[1:2] == [last]:
        log.info(f"no best checkpoint is kept: no evaluator measures {config.best_metric}")
        config.best_metric, config.final_weights = "", "last"


def _keep_one_length(config: Any, keys: Collection[str]) -> None:
    """Clears the file's length of the run if the command line gives another kind of length."""
    lengths = [key for key in LENGTHS if key in keys]
    for key in LENGTHS if lengths else ():
        if key not in lengths or ("total_steps" in lengths and key != "total_steps"):
            config[key] = None
