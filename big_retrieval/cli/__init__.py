"""Start of a command: its flags, its config and the call of its function.

ml_collections reads the config file and the overrides (`config_file.py`). Mistakes in flags or in
the config file raise a `UserError` (`mistakes.py`), which ends the process (`failures.py`).
"""

import functools
import gc
import itertools
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from big_retrieval import __version__
from big_retrieval import config as configs
from big_retrieval.cli import help as manual
from big_retrieval.cli import levels, mistakes
from big_retrieval.cli.config_file import OVERRIDE, ConfigFile
from big_retrieval.cli.failures import fail, guarded
from big_retrieval.cli.failures import owning as owning
from big_retrieval.config import Config, registry
from big_retrieval.errors import UserError
from big_retrieval.runtime import messages, screen

log = logging.getLogger(__name__)

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "FILE.py or the name of a shipped config; with an argument: quickstart:runlocal",
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; runs/<config>-<arg> by default")
WAIT = flags.DEFINE_bool("wait", False, "Wait while another process writes to the same place")
PLUGINS = flags.DEFINE_multi_string("plugins", [], "Python file that defines parts of the run")
flags.FLAGS["config"].parser = ConfigFile(flags.FLAGS["config"].parser)
levels.define()

LENGTHS = ("total_steps", "total_examples", "total_epochs")


def run(
    main: Callable[..., Any],
    *,
    words: int = 0,
    log: bool = False,
    without: Sequence[str] = (),
    instead: str = "",
    about: str = "",
) -> None:
    """Parses the command line and calls `main`; exits with status 2 on a `UserError`.

    With --help or --version it only prints their text.

    Args:
      main: function of the command; takes the words of the command line that are not flags.
      words: maximum number of these words.
      log: True if the results are files, so that the command continues when its output cannot be
        written.
      without: flags of this module, or of another imported module, that the command does not take.
      instead: flag from which the command builds a config, so that keys need no --config; the
        command then parses again.
      about: description of the command, for --help.
    """
    screen.guard(log=log)
    messages.show(results=not log)
    for name in without:
        delattr(flags.FLAGS, name)
    asked = set(sys.argv[1:])
    if asked & {"--version", "-version"}:
        print(f"big-retrieval {__version__}")
        return
    if asked & set(manual.ASKED):
        _help(about)
        return
    prepare_environment()
    parser = functools.partial(parse, words=words, instead=instead)
    try:
        app.run(lambda argv: guarded(lambda: _start(main, *argv[1:])), flags_parser=parser)
    except UserError as problem:
        fail(problem)


def _start(main: Callable[..., Any], *words: str) -> None:
    levels.apply()
    _import_plugins()
    main(*words)


def _import_plugins() -> None:
    for file in PLUGINS.value if "plugins" in flags.FLAGS else ():
        registry.import_file(Path(file))


def _help(about: str) -> None:
    """Prints the command's description and flags, and the keys of a config after --config."""
    argv = [arg for arg in sys.argv if arg not in manual.ASKED]
    config = None
    if "config" in flags.FLAGS and any(re.match(r"--?config(=|$)", arg) for arg in argv):
        try:
            parse(argv, words=len(argv))
            _import_plugins()
            config = load_config()
        except UserError as problem:
            fail(problem)
    print(manual.text(about, config), end="")


def require(*wanted: tuple[flags.FlagHolder, str]) -> None:
    """Raises a UserError for the first missing flag; each flag comes with its meaning."""
    for flag, what in wanted:
        if not flag.value:
            raise UserError(f"--{flag.name} is missing: {what}.")


def prepare_environment() -> None:
    """Changes settings of the process; call it before jax starts its backend."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it
    # Tracing a model creates many objects that stay. Python's default intervals of full garbage
    # collections take a twelfth of the time until the first step.
    gc.set_threshold(gc.get_threshold()[0], 20, 100)


def parse(argv: Sequence[str], *, words: int = 0, instead: str = "") -> list[str]:
    """Parses flags and returns the program and the words that are not flags.

    Args:
      argv: the command line; the program comes first.
      words: maximum number of words that are not flags.
      instead: as in `run`; if this flag is present, keys of a config are ignored.

    Raises:
      UserError: a mistake in a flag, key or config file.
    """
    if instead and any(re.match(rf"--?{instead}(=|$)", arg) for arg in argv):
        argv = [arg for arg in argv if not re.match(OVERRIDE, arg)]
    if "config" in flags.FLAGS:
        mistakes.check_config_file(argv)
    given, _ = split_none(argv)
    try:
        rest = flags.FLAGS(given)
    except Exception as problem:
        raise UserError(mistakes.sentence(problem)) from problem
    if len(rest) > 1 + words:
        hint = (
            f"at most {words} such words are taken"
            if words
            else "keys are set as --config.key=value"
        )
        if instead and Path(rest[1]).exists():
            hint = f"to train on it: --{instead}={rest[1]}"
        raise UserError(f"{rest[1 + words]!r} is no flag; {hint}.")
    return rest


def split_none(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments without overrides that set a key to None, and these keys.

    absl has no None for numbers, so `load_config` sets keys such as `optimizer.clip_norm` of
    --config.optimizer.clip_norm=None. It drops evaluators: --config.evals.colours= or =None.
    """
    rest, keys, skip = [], [], False
    for arg, following in itertools.zip_longest(argv, argv[1:]):
        dropped = re.fullmatch(r"--?config\.(evals\.[^.=]+)(=)", arg)
        match = dropped or re.fullmatch(r"--?config\.([^=]+)(=None)?", arg)
        if skip:
            skip = False
        elif match and (match[2] or following == "None"):
            keys.append(match[1])
            skip = not match[2]
        else:
            rest.append(arg)
    return rest, keys


def load_config() -> Config:
    """Returns the typed configuration of this command line.

    Raises:
      UserError: --config is missing, or a key has a bad value.
    """
    if CONFIG.value is None:
        own = (
            "; or look at your own data and make a config of them, with `big-retrieval train "
            "--data=FOLDER`"
        )
        raise UserError(f"--config is missing, e.g. --config=quickstart{own}.")
    raw = CONFIG.value
    with raw.unlocked():
        for key in split_none(sys.argv)[1]:
            _set_none(raw, key)
        _keep_one_length(raw)
    config = configs.load(raw)
    for file in registry.unused(config.plugins):
        log.warning(f"--plugins={file} defines no part that this config uses")
    return config


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


def _keep_one_length(raw: Any) -> None:
    """Clears the file's length of the run if the command line gives another kind of length."""
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    given = [key for key in LENGTHS if key in overrides]
    for key in LENGTHS if given else ():
        if key not in given or ("total_steps" in given and key != "total_steps"):
            raw[key] = None


def workdir(named: str | None = None) -> Path:
    """Returns --workdir, or runs/<file>-<arg> if the command or the command line lacks it.

    Args:
      named: FILE[:arg] that names the folder; None for the value of --config.
    """
    if "workdir" in flags.FLAGS and WORKDIR.value:
        return Path(WORKDIR.value)
    if named is None:
        named = config_flags.get_config_filename(flags.FLAGS["config"])
    file, _, arg = named.partition(":")
    arg = re.sub(r"[^A-Za-z0-9_.=-]+", "-", arg).strip("-")
    return Path("runs") / (f"{Path(file).stem}-{arg}" if arg else Path(file).stem)
