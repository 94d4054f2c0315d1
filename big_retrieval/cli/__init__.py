"""Start of a command: its options, and the call of its function.

`options.py` parses dataclasses of options, `config_file.py` reads the config. Mistakes raise a
`UserError`, which ends the process with its message (`failures.py`). Nothing here imports the
config or jax, so that --help starts quickly.
"""

import faulthandler
import gc
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval import __version__
from big_retrieval.cli import help as manual
from big_retrieval.cli.failures import fail as fail
from big_retrieval.cli.failures import guarded
from big_retrieval.cli.failures import owning as owning
from big_retrieval.cli.options import parse
from big_retrieval.errors import UserError
from big_retrieval.runtime import messages, screen

Action = Callable[[Any], Any]


def run(
    actions: Mapping[str, Action], argv: Sequence[str], *, name: str, doc: str, log: bool = False
) -> None:
    """Parses the command line and calls a function; exits with status 2 on a `UserError`.

    Args:
      actions: functions of a command by its first word, "" for the function without such a word.
        Each takes a dataclass of options, named by its annotation.
      log: True if the results are files, so that the command continues when its output cannot be
        written.
    """
    screen.guard(log=log)
    messages.show(results=not log)
    if {"--version", "-version"} & set(argv):
        print(f"big-retrieval {__version__}")
        return
    try:
        action, argv = _choose_action(actions, argv, name)
        if set(argv) & set(manual.ASKED):
            cls = options_class(actions[action]) if action in actions else None
            _print_help(cls, argv, doc, () if action else [x for x in actions if x])
            return
        options = parse(options_class(actions[action]), argv, command=name)
    except UserError as error:
        fail(error)
        return
    prepare_environment()
    guarded(lambda: _start(actions[action], options))


def options_class(function: Action) -> Any:
    """Returns the dataclass that a command's function takes."""
    return typing.get_type_hints(function)["options"]


def _choose_action(
    actions: Mapping[str, Action], argv: Sequence[str], name: str
) -> tuple[str, Sequence[str]]:
    """Returns the action that the first word names, "" for none, and the other arguments."""
    word = argv[0] if argv and not argv[0].startswith("-") else ""
    if word and word in actions:
        return word, argv[1:]
    if set(actions) == {""} or set(argv) & set(manual.ASKED):
        return "", argv
    if misplaced := next((x for x in argv if x and x in actions), None):
        raise UserError(f"{misplaced} is not first. Write big-retrieval {name} {misplaced} ...")
    if word or "" not in actions:
        choices = ", ".join(f"big-retrieval {name} {x}" for x in actions if x)
        reason = f"Unknown action {word!r}" if word else "Missing action"
        raise UserError(f"{reason}. Use one of: {choices}.")
    return "", argv


def _start(function: Action, options: Any) -> None:
    from big_retrieval.cli import levels

    levels.apply(options.verbosity)
    _import_plugins(options)
    function(options)


def _import_plugins(options: Any) -> None:
    for file in getattr(options, "plugins", ()):
        from big_retrieval.config import registry

        registry.import_file(Path(file))


def _print_help(cls: Any, argv: Sequence[str], doc: str, actions: Sequence[str]) -> None:
    """Prints the description and flags; with --config also the keys of the config."""
    remaining = [arg for arg in argv if arg not in manual.ASKED]
    config = None
    if cls is not None and any(arg.lstrip("-").startswith("config") for arg in remaining):
        options = parse(cls, remaining, partial=True)
        _import_plugins(options)
        config = options.load_config()
    print(manual.text(doc, cls, actions, config), end="")


def prepare_environment() -> None:
    """Changes settings of the process; call it before jax starts its backend."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it
    faulthandler.enable(2)
    # Tracing a model creates many objects that stay. With Python's default thresholds, full garbage
    # collections take a twelfth of the time until the first step.
    gc.set_threshold(gc.get_threshold()[0], 20, 100)
