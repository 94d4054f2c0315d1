"""The commands of `big-retrieval`, a module each with the command's flags and what it calls.

A module has `main`, which takes the words of the command line that are no flags, and may have

* `WORDS`: how many such words there may be; none by default;
* `LOG`: that the output only tells what the command does and its results are files;
* `WITHOUT`: names of the flags of `big_retrieval.cli` that the command does not take;
* `INSTEAD`: a flag that it makes a config of, so that `--config.KEY` may stand without `--config`.

Flags belong to the whole process and those of several commands have the same names, so that only
the module of the chosen command may be imported.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

PROGRAM = "big-retrieval"


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      module: in this package.
      about: what the command does, in a sentence.
      actions: what its first word may be, for completion.
    """

    module: str
    about: str
    actions: Sequence[str] = ()


COMMANDS = {
    "train": Command("train", "Train a configuration, or on data as they lie there."),
    "plan": Command("plan", "Say what a run would need and cost, without training."),
    "evaluate": Command("evaluate", "Evaluate a run, a model of another library, or BM25."),
    "index": Command("index", "Make an index of documents for search."),
    "search": Command("search", "Search an index."),
    "demo": Command("demo", "Serve a page on this machine that searches."),
    "explain": Command(
        "explain",
        "Explain what a model sees in texts and images.",
        ("examples", "vocabulary"),
    ),
    "mine": Command("mine", "Find hard negatives with a model or BM25."),
    "targets": Command("targets", "Compute a vector for every caption, as targets of losses."),
    "compare": Command("compare", "Compare two systems query by query, with significance tests."),
    "sweep": Command("sweep", "Train a list of configurations with several seeds each."),
    "report": Command("report", "Write the report of a run, or a table of several runs."),
    "import": Command("import_", "Convert a model of another library to a checkpoint."),
    "export": Command(
        "export", "Write a model for another library, and check it there.", ("verify",)
    ),
    "push": Command("push", "Export a model and upload it to a model hub."),
    "data": Command(
        "data",
        "Inspect, convert or split data; say where published data sets are, and check them.",
        ("inspect", "convert", "split", "regions", "get", "check"),
    ),
    "configs": Command("configs", "List the configs that come with the package."),
    "completion": Command(
        "completion", "Print the script that completes commands in a shell.", ("bash", "zsh")
    ),
}


SHARED = (  # with flags of several commands
    "big_retrieval.main",
    "big_retrieval.cli.beir",
    "big_retrieval.cli.columns",
    "big_retrieval.cli.foreign",
    "big_retrieval.cli.roles",
)


def load(name: str, *, again: bool = False) -> ModuleType:
    """Imports the module of a command.

    Args:
      name: of the command.
      again: import it once more where it is imported already, so that its flags are defined anew.
    """
    full = f"{__name__}.{COMMANDS[name].module}"
    if again:
        forget()
    return importlib.import_module(full)


def forget() -> dict[str, ModuleType]:
    """Undoes the imports of all modules that define flags of commands, and returns them."""
    found = {
        name: module
        for name, module in sys.modules.items()
        if name.startswith(f"{__name__}.") or name in SHARED
    }
    for name in found:
        package, _, last = name.rpartition(".")
        del sys.modules[name]
        vars(sys.modules[package]).pop(last, None)
    return found


def overview() -> str:
    """What `big-retrieval --help` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Contrastive retrieval models in JAX: train, evaluate, search, explain, export.",
            "",
            f"    {PROGRAM} COMMAND [--flag=value ...]",
            "",
            "Commands:",
            *(f"  {name:<{width}}  {command.about}" for name, command in COMMANDS.items()),
            "",
            f"{PROGRAM} COMMAND --help describes a command and its flags.",
        ]
    )


def unknown(word: str) -> str:
    """What is said of a first word that is no command."""
    if word.startswith("-"):
        return f"{word} stands before the command: write {PROGRAM} COMMAND {word}."
    near = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"{PROGRAM} --help lists them."
    return f"there is no command {word!r}: {hint}"
