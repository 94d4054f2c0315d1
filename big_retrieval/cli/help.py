"""Text of --help: the command's description, its flags, and the keys of a config."""

import dataclasses
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from big_retrieval.cli.options import CommandFlag, fields_of, meanings_of

ASKED = ("--help", "-help", "-h", "--helpfull", "--helpshort")
WIDTH = 100
INDENT = " " * 8
VALUES = {int: "N", float: "NUMBER"}


def text(doc: str, cls: Any, actions: Sequence[str] = (), config: Any = None) -> str:
    """Returns the help of a command."""
    parts = [doc.strip()]
    if cls is not None:
        flags = [flag for flag in fields_of(cls) if not flag.details.words]
        parts += ["\nFlags:", *(format_flag(flag, meanings_of(cls)) for flag in flags)]
    if actions:
        parts.append(f"\nAdd --help after one of {', '.join(actions)} for the flags of it.")
    if config is not None:
        parts += ["\nKeys of this config, each as KEY=VALUE (type):", *_keys(config, "config")]
    return "\n".join(parts) + "\n"


def format_flag(flag: CommandFlag, meanings: Mapping[str, str]) -> str:
    """Returns the lines of --help for a flag: its form, meaning and default."""
    value = "|".join(flag.choices) or VALUES.get(flag.type, "VALUE")
    if typing.get_origin(flag.type) is tuple and not flag.details.repeated:
        value = "A,B,..."
    if flag.details.keys:
        return f"  --{flag.details.keys}.KEY=VALUE\n{_wrap(meanings[flag.field.name])}"
    name = f"  --{flag.name}={value}" if flag.takes_value else f"  --[no]{flag.name}"
    name += " (may be given several times)" if flag.details.repeated else ""
    condition = f"With --{flag.details.needs}: " if flag.details.needs else ""
    default = flag.field.default
    if isinstance(default, tuple):
        default = ",".join(default)
    shown = f" (default: {default})"
    if flag.is_required:
        shown = " (required)"
    elif default in (None, "", " ", False):
        shown = ""
    return f"{name}\n{_wrap(condition + meanings[flag.field.name] + shown)}"


def _wrap(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _keys(part: Any, path: str) -> Iterator[str]:
    """Yields two lines for every key of a config: the key with its type, and its meaning."""
    hints, meanings = typing.get_type_hints(type(part)), meanings_of(type(part))
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), f"{path}.{field.name}"
        entries = value if isinstance(value, Mapping) else {}
        if dataclasses.is_dataclass(value):
            yield from _keys(value, name)
        elif entries and all(dataclasses.is_dataclass(entry) for entry in entries.values()):
            for key, entry in entries.items():
                yield from _keys(entry, f"{name}.{key}")
        else:
            yield f"  --{name}={_format_value(value)} ({type_name(hints[field.name])})"
            if field.name in meanings:
                yield _wrap(meanings[field.name])


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if value and not re.search(r"\s", value) else repr(value)
    return str(dict(value)) if isinstance(value, Mapping) else repr(value)


def type_name(hint: Any) -> str:
    """Returns an annotation in words, e.g. "int or None"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(type_name, args)))
    if origin is tuple:
        inner = [type_name(arg) for arg in args if arg is not Ellipsis]
        return f"tuple of {', '.join(inner)}"
    if origin is dict:
        return f"name: {type_name(args[1])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
