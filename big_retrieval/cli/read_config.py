"""Reads the config of a command line: --config=FILE and its keys, --config.KEY=VALUE."""

import difflib
import functools
import itertools
import logging
import operator
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags
from ml_collections import config_flags

from big_retrieval import config as configs
from big_retrieval.cli import mistakes, shipped
from big_retrieval.cli.config_file import ConfigFile, chain
from big_retrieval.config import Config, registry
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.cli.option_groups import ConfigOptions

log = logging.getLogger(__name__)
LENGTHS = ("total_steps", "total_examples", "total_epochs")


def read_config(options: "ConfigOptions") -> Config:
    """Returns the typed configuration of a command line.

    Raises:
      UserError: --config is missing, or a key has a bad value.
    """
    if options.config is None:
        raise UserError(
            "--config is missing, e.g. --config=quickstart; or look at your own data and make a "
            "config of them, with `big-retrieval train --data=FOLDER`."
        )
    _check_file(options.config)
    sys.modules.pop("config_config", None)  # ml_collections would add to the last file's module
    overrides, none_keys = split_none(options.keys)
    values, argv = flags.FlagValues(), ["", f"--config={options.config}", *overrides]
    config_flags.DEFINE_config_file("config", None, flag_values=values, sys_argv=argv)
    values["config"].parser = ConfigFile(values["config"].parser, options.keys)
    try:
        words = values(argv)[1:]
    except Exception as error:
        cause = next((x for x in chain(error) if isinstance(x, UserError)), None)
        raise UserError(str(cause or mistakes.translate(error, argv))) from error
    if words:
        raise UserError(mistakes.unexpected_word(words[0], 0, ""))
    raw: Any = values["config"].value
    with raw.unlocked():
        for key in none_keys:
            _set_none(raw, key)
        _keep_one_length(raw, config_flags.get_override_values(values["config"]))
    config = configs.load(raw)
    unused = registry.unused(config.plugins)
    for file in filter(lambda file: Path(file) in unused, options.plugins):
        log.warning(f"--plugins={file} defines no part that this config uses")
    return config


def _check_file(text: str) -> None:
    """Raises if the value of --config does not name a Python file."""
    path = Path(shipped.resolve(text).split(":", 1)[0])
    if path.is_file() and path.suffix == ".py":
        return
    if text and path.parent == Path() and path.suffix != ".py" and not path.exists():
        near = difflib.get_close_matches(path.stem, shipped.configs(), 1)
        hint = f"did you mean {near[0]}?" if near else "big-retrieval configs lists the names."
        raise UserError(f"--config: there is no file or config {str(path)!r}; {hint}")
    file = shipped.nearest_file(path, Path("configs"))
    hint = f"did you mean {file}?" if file else "give FILE.py or FILE.py:words."
    reason = f"there is no file {str(path) if text else text!r}"
    if text and path.exists():
        reason = f"{path} is no Python file"
    raise UserError(f"--config: {reason}; {hint}")


def split_none(keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides without those that set a key to None, and these keys.

    absl has no None for numbers, so `read_config` sets keys such as `optimizer.clip_norm` of
    --config.optimizer.clip_norm=None. It drops evaluators: --config.evals.colours= or =None.
    """
    overrides, none_keys, skip = list[str](), list[str](), False
    for arg, following in itertools.zip_longest(keys, keys[1:]):
        dropped = re.fullmatch(r"--?config\.(evals\.[^.=]+)(=)", arg)
        match = dropped or re.fullmatch(r"--?config\.([^=]+)(=None)?", arg)
        if skip:
            skip = False
        elif match and (match[2] or following == "None"):
            none_keys.append(match[1])
            skip = not match[2]
        else:
            overrides.append(arg)
    return overrides, none_keys


def _set_none(raw: Any, key: str) -> None:
    """Sets a key to None; drops an evaluator and the best metric that it measures."""
    *groups, last = key.split(".")
    group = functools.reduce(operator.getitem, groups, raw)
    if groups != ["evals"]:
        group[last] = None
        return
    del group[last]
    if raw.best_metric.split("/")[1:2] == [last]:
        log.info(f"no best checkpoint is kept: {raw.best_metric} is measured no more")
        raw.best_metric, raw.final_weights = "", "last"


def _keep_one_length(raw: Any, overrides: Collection[str]) -> None:
    """Clears the file's length of the run if the command line gives another kind of length."""
    given = [key for key in LENGTHS if key in overrides]
    for key in LENGTHS if given else ():
        if key not in given or ("total_steps" in given and key != "total_steps"):
            raw[key] = None
