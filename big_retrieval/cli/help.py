"""What --help prints: the command's description, its flags, and the keys of a config.

Flags of absl and of other libraries are left out. The meaning of a config's key is what its
dataclass says about it: in the docstring's section "Attributes" or "Args", or in the comment beside
or above the key.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from absl import flags

from big_retrieval.config import annotations

ASKED = ("--help", "-help", "-h", "--helpfull", "--helpshort")
WIDTH = 100
INDENT = " " * 8
VALUES = {"int": "N", "float": "NUMBER", "comma separated list of strings": "A,B,..."}


def text(about: str, config: Any = None) -> str:
    """The help of a command.

    Args:
      about: the command's description.
      config: the configuration whose keys are listed; None: no keys.
    """
    parts = [about.strip(), "Flags:", *map(_flag, own_flags())]
    if config is not None:
        parts += ["\nKeys of this config, each as KEY=VALUE (type):", *_keys(config, "config")]
    elif "config" in flags.FLAGS:
        parts.append("\n--config=FILE --help lists the keys of a config, too.")
    return "\n".join(parts).replace("\nFlags:", "\n\nFlags:", 1) + "\n"


def own_flags() -> list[flags.Flag]:
    """The flags of this command, in alphabetical order."""
    modules = flags.FLAGS.flags_by_module_dict()
    found = {
        flag.name: flag
        for module, defined in modules.items()
        for flag in defined
        if module.startswith("big_retrieval") or module == sys.argv[0] or flag.name == "verbosity"
        if flag.name in flags.FLAGS and not flag.name.startswith("config.")
        if not str(flag.help).startswith("Alias for ")
    }
    return [found[name] for name in sorted(found)]


def takes_value(flag: flags.Flag) -> bool:
    """Whether a flag is written with a value."""
    return not flag.boolean


def _flag(flag: flags.Flag) -> str:
    """A flag with its default and meaning."""
    kind = flag.flag_type()
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else VALUES.get(kind, "VALUE")
    name = f"  --{flag.name}={value}" if takes_value(flag) else f"  --[no]{flag.name}"
    if kind.startswith("multi"):
        name += " (may be given several times)"
    default = flag.default
    if isinstance(default, list | tuple):
        default = ",".join(map(str, default))
    shown = (
        ""
        if default in (None, "", False) or "(default: " in flag.help
        else f" (default: {default})"
    )
    added_by_absl = r"^<[^>]*>: |;\s+repeat this option[^;]*$"
    about = re.sub(added_by_absl, "", str(flag.help))
    return f"{name}\n{_wrapped(f'{about}{shown}')}"


def _wrapped(words: str) -> str:
    return textwrap.fill(
        " ".join(words.split()), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _keys(part: Any, path: str) -> Iterator[str]:
    """A line for every key of a part of the configuration, and a second one with its meaning."""
    hints, meanings = annotations.hints_of(type(part)), meanings_of(type(part))
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), f"{path}.{field.name}"
        entries = value if isinstance(value, Mapping) else {}
        if dataclasses.is_dataclass(value):
            yield from _keys(value, name)
        elif entries and all(dataclasses.is_dataclass(entry) for entry in entries.values()):
            for key, entry in entries.items():
                yield from _keys(entry, f"{name}.{key}")
        else:
            yield f"  --{name}={_shown(value)} ({type_name(hints[field.name])})"
            if field.name in meanings:
                yield _wrapped(meanings[field.name])


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value if value and not re.search(r"\s", value) else repr(value)
    return str(dict(value)) if isinstance(value, Mapping) else repr(value)


def type_name(hint: Any) -> str:
    """An annotation in words, e.g. "int or None"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(type_name, args)))
    if origin is tuple:
        inner = [type_name(each) for each in args if each is not Ellipsis]
        return f"tuple of {', '.join(inner)}"
    if origin is dict:
        return f"name: {type_name(args[1])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


@functools.cache
def meanings_of(cls: type) -> Mapping[str, str]:
    """What a dataclass says about its keys, those that it inherits included."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            with contextlib.suppress(OSError, TypeError):  # a class that no file holds
                found |= of_comments(inspect.getsource(each).splitlines())
            found |= _of_docstring(inspect.getdoc(each) or "")
    return found


def _of_docstring(doc: str) -> dict[str, str]:
    """Name -> text of the sections "Attributes" and "Args"."""
    found: dict[str, str] = {}
    inside, last = False, ""
    for line in doc.splitlines():
        if line and not line.startswith(" "):
            inside = line in ("Attributes:", "Args:")
        elif inside and (match := re.match(r"  (\w+): (.*)", line)):
            last = match[1]
            found[last] = match[2]
        elif inside and last and line.strip():
            found[last] += f" {line.strip()}"
    return found


def of_comments(lines: Iterable[str]) -> dict[str, str]:
    """Name -> text of the comments beside and above the keys.

    Args:
      lines: of the definition of a dataclass.
    """
    found: dict[str, str] = {}
    above = ""
    for line in lines:
        if match := re.match(r"    # (.*)", line):
            above = f"{above} {match[1]}".strip()
            continue
        if match := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            meaning = "; ".join(part for part in (above, match[2]) if part)
            found |= {match[1]: meaning} if meaning else {}
        above = ""
    return found
