"""Error messages for mistakes in flags."""

import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from big_retrieval.errors import UserError

SHARED = ("config", "workdir", "plugins", "wait")  # flags of most commands


def unknown_flag(name: str, command: str, names: Collection[str], argv: Sequence[str]) -> str:
    """Returns the error message for a flag that a command does not take."""
    first, dot, key = name.partition(".")
    if first in SHARED:
        return f"--{first} is not for {command}: leave it out."
    if "config" in names and (keys := _keys_named(name, argv)):
        return f"Unknown command line flag '{name}': did you mean --{keys[0]}?"
    near = difflib.get_close_matches(first, names, 1)
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


def unexpected_word(word: str, max_words: int, command: str) -> str:
    """Returns the error message for a word that is not a flag, after `max_words` such words."""
    hint = "flags begin with --"
    if "=" in word:
        hint = f"keys are set as --config.{word}"
    elif max_words:
        hint = f"at most {max_words} such words are taken"
    elif command == "train" and Path(word).exists():
        hint = f"to train on it: --data={word}"
    return f"Not a flag: {word!r}; {hint}."
