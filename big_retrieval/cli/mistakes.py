"""Error messages for mistakes in flags."""

import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from big_retrieval.errors import UserError

WANTED = {  # part of a message of absl -> valid values
    "literal for int": "a whole number",
    "string to float": "a number",
    "Non-boolean": "True or False",
    "as a ConfigDict": "a group of keys: set its single keys instead",
}
SHARED = ("config", "workdir", "plugins", "wait")  # flags of most commands


def translate(error: Exception, argv: Sequence[str]) -> str:
    """Returns the error message for an exception of absl about a flag's value."""
    text = " ".join(str(error).split())
    if match := re.match(r"flag --(\S+?)=(.*?): (.*)", text):
        wanted = next((words for part, words in WANTED.items() if part in match[3]), match[3])
        if choices := re.fullmatch(r"value should be one of <(.*)>", wanted):
            wanted = f"one of {choices[1].replace('|', ', ')}"
        name = match[1] if match[1].startswith("config.") else f"--{match[1]}"
        if outside := re.fullmatch(r"(\S+) is not (.*)", wanted):  # of a flag with bounds
            return f"{name} is {outside[1]}; it must be {outside[2].replace('integer', 'number')}."
        given = {arg.lstrip("-").split("=")[0]: arg.partition("=")[2] for arg in argv}
        return f"{name} is {given.get(match[1]) or match[2]!r}; it must be {wanted}."
    if match := re.match(r"Missing value for flag (\S+)", text):
        return f"{match[1]} has no value; write {match[1]}=VALUE."
    return text or type(error).__name__


def unknown_flag(name: str, command: str, known: Collection[str], argv: Sequence[str]) -> str:
    """Returns the error message for a flag that a command does not take.

    Args:
      name: the flag.
      command: name of the command.
      known: names of its flags.
      argv: the command line, whose --config may have a key of this name.
    """
    first, dot, key = name.partition(".")
    if first in SHARED:
        return f"--{first} is not for {command}: leave it out."
    if "config" in known and (keys := _keys_named(name, argv)):
        return f"Unknown command line flag '{name}': did you mean --{keys[0]}?"
    near = difflib.get_close_matches(first, known, 1)
    hint = f"did you mean --{near[0]}{dot}{key}?" if near else "--help lists them."
    return f"Unknown command line flag '{name}': {hint}"


def _keys_named(name: str, argv: Sequence[str]) -> list[str]:
    """Returns the keys of the command line's config that have the name of a flag."""
    text = re.search(r"(?<!\S)--?config[= ](\S+)", " ".join(argv))
    if text is None:
        return []
    from big_retrieval.cli.config_file import run_config_file
    from big_retrieval.config import schema

    try:
        return schema.keys_named(run_config_file(text[1]).to_dict(), name)
    except (UserError, AttributeError):
        return []


def unexpected_word(word: str, most: int, command: str) -> str:
    """Returns the error message for a word that is not a flag, after the `most` allowed words."""
    hint = "keys are set as --config.key=value"
    if most:
        hint = f"at most {most} such words are taken"
    elif command == "train" and Path(word).exists():
        hint = f"to train on it: --data={word}"
    return f"{word!r} is no flag; {hint}."
