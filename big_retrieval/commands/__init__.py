"""The commands of `big-retrieval`, with one module per command.

A module has the function `main`, which takes a dataclass of options (`cli/options.py`), or ACTIONS:
such functions by the first word of the command line. LOG = True states that the results are files
and the output only reports progress.
"""

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from big_retrieval import cli

PROGRAM = "big-retrieval"
COMMANDS = {
    "train": "Train a configuration, or train on your data directly.",
    "plan": "Print the memory, time and communication of a run, without training.",
    "evaluate": "Evaluate a run, a third-party model, or BM25.",
    "index": "Build an index of documents for search.",
    "search": "Search an index.",
    "demo": "Serve a search page on this machine.",
    "explain": "Explain what a model sees in texts and images.",
    "mine": "Find hard negatives with a model or BM25.",
    "targets": "Compute a vector for every caption, as targets of losses.",
    "compare": "Compare two systems query by query, with significance tests.",
    "sweep": "Train a list of configurations with several seeds each.",
    "report": "Write the report of a run, or a table of several runs.",
    "import": "Convert a third-party model to a checkpoint.",
    "export": "Write a model for another library, and check it there.",
    "push": "Export a model and upload it to a model hub.",
    "data": "Inspect, convert or split data; locate and check published data sets.",
    "configs": "List the configs that come with the package.",
    "completion": "Print the script that completes commands in a shell.",
}


def load(name: str) -> ModuleType:
    """Imports the module of a command."""
    return importlib.import_module(f"{__name__}.{'import_' if name == 'import' else name}")


def actions_of(module: ModuleType) -> "Mapping[str, cli.Action]":
    """Returns a command's functions by the first word of the command line."""
    return getattr(module, "ACTIONS", None) or {"": module.main}


def run(name: str, argv: Sequence[str]) -> None:
    """Runs a command with the command line after its name."""
    from big_retrieval import cli  # imports absl, which the overview does not need

    sys.argv = [f"{PROGRAM} {name}", *argv]  # as in the files of a run
    module = load(name)
    log = getattr(module, "LOG", False)
    cli.run(actions_of(module), argv, name=name, doc=module.__doc__ or "", log=log)


def overview() -> str:
    """Returns the text of `big-retrieval --help`."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
    return f"""\
Contrastive retrieval models in JAX: train, evaluate, search, explain, export.

    {PROGRAM} COMMAND [--flag=value ...]

Commands:
{commands}

{PROGRAM} COMMAND --help describes a command and its flags."""


def unknown(word: str) -> str:
    """Returns the error message for a first word that is not a command."""
    if word.startswith("-"):
        return f"{word} precedes the command. Write {PROGRAM} COMMAND {word}."
    near = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"{PROGRAM} --help lists them."
    return f"Unknown command {word!r}: {hint}"
