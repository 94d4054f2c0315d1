"""Error messages for mistakes in flags, from exceptions of absl and from the command line."""

import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from big_retrieval.cli import shipped
from big_retrieval.cli.config_file import OVERRIDE, chain
from big_retrieval.config import schema
from big_retrieval.errors import UserError

WANTED = {  # part of a message of absl -> valid values
    "literal for int": "a whole number",
    "string to float": "a number",
    "Non-boolean": "True or False",
    "as a ConfigDict": "a group of keys: set its single keys instead",
}

SHARED = ("config", "workdir", "plugins", "wait")  # flags of `cli`; some commands lack them
INSTEAD = {  # (command, flag that it does not take) -> remedy
    ("compare", "run"): "give the folders alone: big-retrieval compare RUN_A RUN_B.",
    ("report", "run"): "give the folder alone: big-retrieval report RUN.",
    ("report", "workdir"): "give the folder alone: big-retrieval report RUN.",
    ("sweep", "config"): "the sweep file names the configs; leave it out.",
    ("sweep", "out"): "the folder of the runs is --workdir.",
    ("search", "k"): "--depth says how many documents are found.",
    ("search", "top"): "--depth says how many documents are found.",
    ("search", "top_k"): "--depth says how many documents are found.",
    ("plan", "distributed"): "one process plans for all; leave it out.",
}


def check_config_file(argv: Sequence[str]) -> None:
    """Raises if --config is given twice, names no Python file, or follows one of its keys."""
    values = [arg.split("=", 1)[1] for arg in argv if re.match(r"--?config=", arg)]
    values += [b for a, b in itertools.pairwise(argv) if re.fullmatch(r"--?config", a)]
    place = [i for i, arg in enumerate(argv) if re.match(r"--?config(=|$)", arg)]
    early = [arg for arg in argv[: place[0] if place else None] if re.match(OVERRIDE, arg)]
    if early:
        where = "stands before" if place else "needs"
        raise UserError(f"{early[0]} {where} --config: give --config=FILE first, then its keys.")
    if len(values) > 1:
        raise UserError(f"--config is given {len(values)} times ({', '.join(values)}); keep one.")
    for value in values:
        path = Path(shipped.resolve(value).split(":", 1)[0])
        if not (path.is_file() and path.suffix == ".py"):
            raise UserError(f"--config: {_missing_file(value, path)}")


def _missing_file(value: str, path: Path) -> str:
    """Returns the message for a --config that is not a Python file."""
    if value and path.parent == Path() and path.suffix != ".py" and not path.exists():
        near = difflib.get_close_matches(path.stem, shipped.configs(), 1)
        hint = f"did you mean {near[0]}?" if near else "big-retrieval configs lists the names."
        return f"there is no file or config {str(path)!r}; {hint}"
    file = shipped.nearest_file(path, Path("configs"))
    hint = f"did you mean {file}?" if file else "give FILE.py or FILE.py:words."
    if value and path.exists():
        return f"{path} is no Python file; {hint}"
    return f"there is no file {str(path) if value else value!r}; {hint}"


def sentence(problem: Exception) -> str:
    """Returns the error message for an exception of absl."""
    for cause in chain(problem):
        if isinstance(cause, UserError):
            return str(cause)
    text = " ".join(str(problem).split())
    match = re.match(r"flag --(\S+?)=(.*?): (.*)", text)
    if match:
        wanted = next((words for sign, words in WANTED.items() if sign in match[3]), match[3])
        if choices := re.fullmatch(r"value should be one of <(.*)>", wanted):
            wanted = f"one of {choices[1].replace('|', ', ')}"
        name = match[1] if match[1].startswith("config.") else f"--{match[1]}"
        if outside := re.fullmatch(r"(\S+) is not (.*)", wanted):  # of a flag with bounds
            return f"{name} is {outside[1]}; it must be {outside[2].replace('integer', 'number')}."
        given = {arg.lstrip("-").split("=")[0]: arg.partition("=")[2] for arg in sys.argv}
        return f"{name} is {given.get(match[1]) or match[2]!r}; it must be {wanted}."
    match = re.match(r"Unknown command line flag '([^']+)'", text)
    if match:
        if explained := _not_here(match[1]):
            return explained
        if keys := _keys_named(match[1]):
            return f"Unknown command line flag '{match[1]}': did you mean --{keys[0]}?"
        known = [name for name in flags.FLAGS if not name.startswith("config.")]
        near = difflib.get_close_matches(match[1].split(".")[0], known, 1)
        rest = match[1].partition(".")[1:]
        hint = f"did you mean --{near[0]}{''.join(rest)}?" if near else "--help lists them."
        return f"Unknown command line flag '{match[1]}': {hint}"
    match = re.match(r"Missing value for flag (\S+)", text)
    if match:
        return f"{match[1]} has no value; write {match[1]}=VALUE."
    return text or type(problem).__name__


def _keys_named(name: str) -> list[str]:
    """Returns the keys of the command line's config that have the name of a flag."""
    config = flags.FLAGS["config"].value if "config" in flags.FLAGS else None
    return [] if config is None else schema.keys_named(config.to_dict(), name)


def _not_here(name: str) -> str | None:
    """Returns the message for a flag that only other commands take, else None."""
    command, key = sys.argv[0].rpartition(" ")[2], name.split(".")[0]
    if (command, key) in INSTEAD:
        return f"--{key} is not for {command}: {INSTEAD[command, key]}"
    if key not in SHARED:
        return None
    remedy = "leave it out."
    if key == "workdir" and "run" in flags.FLAGS:
        remedy = "--run names the run or checkpoint to read"
        remedy += ", --out what is written." if "out" in flags.FLAGS else "."
    return f"--{key} is not for {command}: {remedy}"
