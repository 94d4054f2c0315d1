"""Reads config files; every mistake in them is a UserError."""

import difflib
import logging
import sys
import sysconfig
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ml_collections

from big_retrieval import config as configs
from big_retrieval.cli import overrides, shipped
from big_retrieval.config import Config, recipe, registry
from big_retrieval.config.runlocal import command_line
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.cli.option_groups import ConfigOptions

log = logging.getLogger(__name__)

QUOTES = "\"'"
OF_CONFIG_FILE = ("towers", "fields", "init", "losses", "data", "evals")  # keys that a file adds
NO_ENTRY = (
    "no key or entry {!r}. Assign a new entry, such as a second loss, as a whole "
    "(c.losses.name = recipe.entry(...)) before its keys"
)


def read_config(options: "ConfigOptions") -> Config:
    """Returns the typed configuration of a command line."""
    if options.config is None:
        raise UserError(
            "--config is missing. Use one such as --config=quickstart (`big-retrieval configs` "
            "lists them), or train on your data: `big-retrieval train --data=FOLDER`."
        )
    _check_file(options.config)
    changes = overrides.parse_overrides(options.keys)
    raw = run_config_file(options.config, [change.key for change in changes])
    overrides.apply_overrides(raw, changes)
    config = configs.load(raw)
    unused = registry.unused(config.plugins)
    for file in filter(lambda file: Path(file) in unused, options.plugins):
        log.warning(f"--plugins={file} defines no part that this config uses")
    return config


def check_overrides(arguments: Sequence[str]) -> None:
    """Raises for a wrong override of a key that every config has, before there is a config."""
    raw = recipe.base().lock()
    changes = overrides.parse_overrides(arguments)
    overrides.apply_overrides(raw, [x for x in changes if x.path[0] not in OF_CONFIG_FILE])
    configs.load(raw)


def _check_file(text: str) -> None:
    """Raises if the value of --config does not name a Python file."""
    path = Path(shipped.resolve(text).split(":", 1)[0])
    if path.is_file() and path.suffix == ".py":
        return
    if text and path.parent == Path() and path.suffix != ".py" and not path.exists():
        near = difflib.get_close_matches(path.stem, shipped.configs(), 1)
        hint = f"did you mean {near[0]}?" if near else "big-retrieval configs lists the names."
        raise UserError(f"--config: no file or config {str(path)!r}; {hint}")
    file = shipped.nearest_file(path, Path("configs"))
    hint = f"did you mean {file}?" if file else "use FILE.py or FILE.py:ARGUMENT."
    reason = f"no file {str(path) if text else text!r}"
    if text and path.exists():
        reason = f"not a Python file: {path}"
    raise UserError(f"--config: {reason}; {hint}")


def run_config_file(text: str, keys: Collection[str] = ()) -> ml_collections.ConfigDict:
    """Runs a config file and returns the result of its `get_config`, locked.

    Args:
      text: as --config, a name or file with an optional argument: "quickstart:runlocal".
      keys: keys that the command line sets afterwards, such as "data.path".

    Raises:
      UserError: there is no such file, or it fails; names the file and line.
    """
    name, colon, argument = shipped.resolve(text).partition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"Unknown config {name!r}. `big-retrieval configs` lists them.")
    can_import_configs(path)
    try:
        with command_line(keys):
            module = registry.run_file(path, "config")
            if not hasattr(module, "get_config"):
                raise UserError(f"{name} has no function get_config(arg).")
            config = module.get_config(*([argument] if colon else ()))
    except Exception as error:
        raise UserError(mistake_in(name, error)) from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(
            f"{text}: get_config returned {config!r:.40}, not a configuration. Begin with "
            "c = recipe.base() and end with return c."
        )
    return config.lock()


def can_import_configs(path: Path) -> None:
    """Lets a config file import files of its folder from any working directory.

    Their names are the files' names; in a folder `configs`, also `configs.<name>`.
    """
    parents = path.resolve().parents
    folders = [parents[0], *(folder.parent for folder in parents if folder.name == "configs")]
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def mistake_in(file: str, error: Exception) -> str:
    """Returns the error message for an exception of a config or sweep file."""
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join(str(cause).split())
        if isinstance(cause, AttributeError | KeyError):  # of a ConfigDict: "'key'" and a hint
            text = NO_ENTRY.format(text.strip(QUOTES)) if " " not in text else text
        if isinstance(cause, SyntaxError):
            line = f", line {cause.lineno}" if cause.lineno else ""
            return f"{cause.filename or file}{line} is not Python: {cause.msg}."
        location = _users_line(cause)
        if isinstance(cause, UserError):
            is_argument = text.startswith("config argument")  # on the command line
            return text if is_argument or not location else f"{location}: {text}"
        if location:
            return f"{location}: {type(cause).__name__}: {text}"
        if text.startswith("get_config()"):
            return f"{file}: {text}; it must be get_config(arg: str = '')."
        cause = cause.__cause__ or cause.__context__
    return f"{file}: {type(error).__name__}: {error}"


def _users_line(error: BaseException) -> str | None:
    """Returns file and line of the innermost frame outside of libraries and this package."""
    libraries = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" not in frame.filename and not frame.filename.startswith(libraries):
            return f"{frame.filename}, line {frame.lineno}"
    return None
