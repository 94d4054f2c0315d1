"""Runs config files and checks overrides; every mistake in them is a UserError."""

import dataclasses
import functools
import operator
import re
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import flags

from big_retrieval.cli import shipped
from big_retrieval.config import Config, annotations, schema
from big_retrieval.config.runlocal import command_line
from big_retrieval.config.sources import Source
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError

OVERRIDE = r"--?(?P<no>no)?config\.(?P<key>[^=]+)"
QUOTES = "\"'"
NO_ENTRY = (
    "there is no key or entry {!r}; a new one, such as a second loss, is assigned as a whole "
    "(c.losses.name = recipe.entry(...)) before its keys are"
)


class ConfigFile(flags.ArgumentParser):
    """Parser of the flag --config: runs the config file and checks the keys of overrides."""

    def __init__(self, inner: Any, keys: Sequence[str] = ()) -> None:
        """Wraps the parser of ml_collections; keys are arguments such as --config.KEY=VALUE."""
        super().__init__()
        self._inner, self._keys = inner, keys

    def parse(self, argument: str) -> Any:
        """Returns the result of `get_config`.

        Raises:
          UserError: names the file and line, or the override's key.
        """
        argument = shipped.resolve(argument)
        can_import_configs(Path(argument.split(":", 1)[0]))
        given = [(arg, match) for arg in self._keys if (match := re.match(OVERRIDE, arg))]
        try:
            with command_line(match["key"] for _, match in given):
                config = self._inner.parse(argument)
            getattr(config, "keys", None)  # ml_collections raises an OSError only here
        except Exception as error:
            raise UserError(mistake_in(argument.split(":", 1)[0], error)) from error
        if not isinstance(config, ml_collections.ConfigDict):
            raise UserError(
                f"{argument}: get_config returned {config!r:.40}, not a configuration: begin with "
                "c = recipe.base() and end it with return c."
            )
        _open_topology(config, {match["key"] for _, match in given})
        for arg, match in given:
            _begin(config, match["key"])
            _switch(config, match["key"], arg.partition("=")[2])
        for arg, match in given:
            _check_key(config, match["key"], arg, negated=bool(match["no"]))
        return config


def run_config_file(text: str) -> Any:
    """Runs a config file without command-line flags.

    Args:
      text: as --config, a name or file with an optional argument: "quickstart:runlocal".

    Returns:
      The result of its `get_config`.

    Raises:
      UserError: there is no such file, or it fails.
    """
    name, _, arg = shipped.resolve(text).partition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"There is no config {name!r}. `big-retrieval configs` lists them.")
    can_import_configs(path)
    try:
        return runpy.run_path(str(path), run_name="config_file")["get_config"](arg)
    except Exception as problem:
        raise UserError(mistake_in(name, problem)) from problem


def can_import_configs(path: Path) -> None:
    """Lets a config file import its neighbours from any working directory.

    Neighbours have their own names; in a folder `configs`, also `configs.<name>`.
    """
    parents = path.resolve().parents
    folders = [parents[0], *(folder.parent for folder in parents if folder.name == "configs")]
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _open_topology(config: Any, keys: Collection[str]) -> None:
    """Makes `config.topology` a group if the command line sets a key of it, else text."""
    named = config.get("topology")
    with config.ignore_type(), config.unlocked():
        if "topology" in keys:  # replaced as a whole
            config.topology = ""
        elif isinstance(named, str) and any(key.startswith("topology.") for key in keys):
            config.topology = schema.to_config_dict(topology_part(named))


def _begin(config: Any, key: str) -> None:
    """Adds entries that only the command line names, to groups whose new entries have one type.

    These are `init`, `optimizer.groups`, `optimizer.phases`, and `trackers`, whose names are types.
    """
    cls: Any = Config
    node: Any = config
    names = key.split(".")
    while len(names) > 1 and dataclasses.is_dataclass(cls):
        name, *names = names
        kind = annotations.entry_kind(cls, name, names[0])
        cls = annotations.hints_of(cls).get(name)
        node = node.get(name)
        if not isinstance(node, ml_collections.ConfigDict):
            return
        if kind is not None:
            entry, *names = names
            if names and entry not in node:
                with config.unlocked():
                    node[entry] = schema.to_config_dict(kind())
            cls, node = kind, node.get(entry)


def _switch(config: Any, key: str, value: str) -> None:
    """Converts a group to the type that the command line gives, so that its keys can follow.

    Shared keys keep their values and new keys get their defaults. Keys of a source at the default
    of the old type get the default of the new type.
    """
    *path, last = key.split(".")
    if last != "type" or not path:
        return
    try:
        group = functools.reduce(operator.getitem, path[:-1], config)
        old, known = group[path[-1]], annotations.variants_at(Config, config, path)
        old_type = old.type
    except (AttributeError, KeyError, TypeError):  # `_check_key` reports unknown keys
        return
    if value not in known or old_type == value:
        return
    new, cls = schema.to_config_dict(known[value]()), known.get(str(old_type))
    usual = schema.to_config_dict(cls()) if cls and issubclass(cls, Source) else {}
    for name in set(old) & set(new) - {"type"}:
        if name not in usual or old[name] != usual[name]:  # "txt" is the text of tars alone
            new[name] = old[name]
    with config.unlocked():
        group[path[-1]] = new


def _check_key(config: Any, key: str, arg: str, *, negated: bool) -> None:
    """Raises if an override names no key, or replaces a group by some of its keys."""
    node, path = config, "config"
    for name in key.split("."):
        name = name.split("[", 1)[0]
        if not isinstance(node, ml_collections.ConfigDict):
            raise UserError(f"{arg}: {path} is a single value: set --{path}=VALUE.")
        if name not in node:
            raise UserError(schema.unknown_key(path, name, node, node.to_dict()))
        node, path = node[name], f"{path}.{name}"
    if negated and not isinstance(node, bool):
        raise UserError(f"{arg}: {path} is not a True or False; set it as --{path}=value.")


def chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and its causes."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def mistake_in(file: str, problem: Exception) -> str:
    """Returns the error message for an exception of a config or sweep file."""
    for cause in chain(problem):
        text = " ".join(str(cause).split())
        if isinstance(cause, AttributeError | KeyError):  # of a ConfigDict: "'key'" and a hint
            text = NO_ENTRY.format(text.strip(QUOTES)) if " " not in text else text
        if isinstance(cause, SyntaxError):
            line = f", line {cause.lineno}" if cause.lineno else ""
            return f"{cause.filename or file}{line} is not Python: {cause.msg}."
        where = _users_line(cause)
        if isinstance(cause, UserError):
            own = text.startswith("config argument")  # on the command line, not in the file
            return text if own or not where else f"{where}: {text}"
        if where:
            return f"{where}: {type(cause).__name__}: {text}"
        if "no attribute 'get_config'" in text:
            return f"{file} has no function get_config(arg); see configs/quickstart.py."
        if text.startswith("get_config()"):
            return f"{file}: {text}; it must be get_config(arg: str = '')."
    return f"{file}: {type(problem).__name__}: {problem}"


def _users_line(problem: BaseException) -> str | None:
    """Returns file and line of the innermost frame outside of libraries and this package."""
    libraries = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if "site-packages" not in frame.filename and not frame.filename.startswith(libraries):
            return f"{frame.filename}, line {frame.lineno}"
    return None
