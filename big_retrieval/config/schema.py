"""Conversion between typed dataclasses and ConfigDicts, with strict checks.

The defaults of a run are one tree of frozen dataclasses (`big_retrieval.config`). Config files and
the command line change its ConfigDict form; `parse` turns that back into the typed tree and rejects
unknown keys and wrong types.

Supported annotations: bool, int, float, str and unions of these, Literal, `X | None`,
tuple[X, ...], tuple[X, Y], dict[str, X], dataclasses, unions of dataclasses with a Literal key
(`type` or `kind`) that tells them apart, and the base class of a kind of parts, which stands for
all registered parts (`config/registry.py`).
"""

import dataclasses
import difflib
import itertools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import ml_collections
from ml_collections import config_dict

from big_retrieval.config.annotations import choices_of, hints_of, kind_in, named, tag_of
from big_retrieval.errors import UserError
from big_retrieval.io.manifest import to_json

T = TypeVar("T")
# Metadata of a dataclass field: its value in older files without the key, if not the default.
BEFORE = "before"
USUAL_NAMES = {"learning_rate": "lr", "epochs": "total_epochs", "steps": "total_steps"}
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}


def to_config_dict(tree: Any) -> ml_collections.ConfigDict:
    """Returns the ConfigDict form of a dataclass.

    `None` of an optional key becomes a typed placeholder, so that the command line can assign it.
    """
    hints = hints_of(type(tree))
    out = ml_collections.ConfigDict()
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name)
        if value is None:
            out[field.name] = config_dict.placeholder(_optional(hints[field.name]))
        elif dataclasses.is_dataclass(value):
            out[field.name] = to_config_dict(value)
        elif isinstance(value, Mapping):
            out[field.name] = ml_collections.ConfigDict(
                {
                    key: to_config_dict(item) if dataclasses.is_dataclass(item) else item
                    for key, item in value.items()
                }
            )
        else:
            out[field.name] = value
    return out


def to_plain(tree: Any) -> dict[str, Any]:
    """Returns a dataclass as nested dictionaries and lists, ready for JSON."""

    def plain(value: Any) -> Any:
        value = getattr(value, "saved_form", value)  # a part whose file is not imported
        if dataclasses.is_dataclass(value):
            return {x.name: plain(getattr(value, x.name)) for x in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return plain(tree)


def parse(cls: type[T], raw: Any, path: str = "config") -> T:
    """Builds the dataclass `cls` from a ConfigDict or a dictionary, checking every key and type.

    Args:
      cls: a dataclass with the annotations listed above.
      raw: the mapping, with all keys of `cls` and no others.
      path: path of this group, for messages.

    Raises:
      UserError: an unknown key (with the nearest known one), a missing key, or a wrong type.
    """
    if isinstance(raw, ml_collections.ConfigDict):
        raw = raw.to_dict()
    if not isinstance(raw, Mapping):
        raise UserError(f"{path} is a group of keys, not {raw!r}: set its single keys instead.")
    hints = hints_of(cls)
    for key in raw:
        if key not in hints:
            raise UserError(unknown_key(path, str(key), hints, raw))
    missing = [key for key in hints if key not in raw]
    if missing:
        raise UserError(missing_keys(path, missing, next(iter(raw), missing[0])))
    values = {key: _value(hint, raw[key], f"{path}.{key}") for key, hint in hints.items()}
    return cls(**values)


def parse_part(kind: type[T], raw: Any, path: str) -> T:
    """Returns the part of a group of keys; `kind` is the base class of its parts.

    Raises:
      UserError: an unknown type or key, a missing key, or a wrong type of a value.
    """
    return _value(kind, raw, path)


Unknown = Callable[[Any, Any, str], Any]


def complete(hint: Any, raw: Any, unknown: Unknown | None = None, path: str = "config") -> Any:
    """Returns a saved plain tree with the defaults of keys that are missing in it.

    Args:
      hint: the dataclass, or the annotation of a part of it.
      raw: the saved value.
      unknown: (annotation, group, path) -> replacement of a group of an unknown type. None keeps
        such groups and ignores `BEFORE`, for trees that are not from a file.
      path: path of this part.
    """
    args, choices = typing.get_args(hint), choices_of(hint)
    if not choices and isinstance(raw, Mapping) and (kind := kind_in(hint)):
        return complete(kind, raw, unknown, path)
    if choices and isinstance(raw, Mapping):
        tag, known = tag_of(choices[0]), named(choices)
        if tag not in raw:  # older files had one kind only
            raw = {**raw, tag: next(iter(known))}
        if raw[tag] in list(known):
            return complete(known[raw[tag]], raw, unknown, path)
        return unknown(hint, raw, path) if unknown else raw
    if typing.get_origin(hint) is dict and isinstance(raw, Mapping):
        return {
            key: complete(args[1], value, unknown, f"{path}.{key}") for key, value in raw.items()
        }
    if not dataclasses.is_dataclass(hint) or not isinstance(raw, Mapping):
        return raw
    hints, out = hints_of(hint), dict(raw)
    for field in dataclasses.fields(hint):
        if field.name in raw:
            out[field.name] = complete(
                hints[field.name], raw[field.name], unknown, f"{path}.{field.name}"
            )
        elif unknown and BEFORE in field.metadata:
            out[field.name] = field.metadata[BEFORE]
        elif field.default is not dataclasses.MISSING:
            out[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            out[field.name] = to_plain(field.default_factory())
    return out


def unknown_key(
    path: str, key: str, known: Iterable[str], tree: Mapping[str, Any] | None = None
) -> str:
    """Returns the error message for an unknown key, with the nearest known one.

    Args:
      path: path of the group.
      key: the unknown key.
      known: keys of the group.
      tree: the group with its values; a key of the whole configuration is also searched in its
        parts.
    """
    known = list(known)
    paths = keys_named(tree, key) if tree and path == "config" else []
    near = [name for name in paths if name != f"{path}.{key}"][:1]
    near = near or [f"{path}.{name}" for name in difflib.get_close_matches(key, known, 1, 0.5)]
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(known))}."
    return f"{path}.{key} is not a key of the configuration; {hint}"


def keys_named(tree: Mapping[str, Any], name: str, path: str = "config") -> list[str]:
    """Returns the paths of keys with a name, shortest first: `config.optimizer.lr` for "lr".

    Args:
      tree: a plain configuration or group.
      name: last name of a key's path, or a usual synonym.
      path: path of the tree.
    """
    name, paths = USUAL_NAMES.get(name, name), []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            paths += keys_named(value, name, f"{path}.{key}")
        elif key == name:
            paths.append(f"{path}.{key}")
    return sorted(paths, key=lambda x: x.count("."))


def missing_keys(path: str, missing: Sequence[str], example: str) -> str:
    """Returns the error message for a group that was replaced by some of its keys."""
    return (
        f"{path} has lost its {'keys' if len(missing) > 1 else 'key'} {', '.join(missing)}: change "
        f"single keys ({path}.{example}=...) instead of replacing the group."
    )


def as_saved(tree: Any) -> dict[str, Any]:
    """Returns a dataclass in the form of config.json."""
    return json.loads(to_json(to_plain(tree)))


def differences(old: Any, new: Any, path: str = "config") -> list[tuple[str, Any, Any]]:
    """Returns the leaves in which two plain trees differ, as (path, old value, new value)."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = list(old) + [key for key in new if key not in old]
        leaves = (differences(old.get(key), new.get(key), f"{path}.{key}") for key in keys)
        return list(itertools.chain.from_iterable(leaves))
    return [] if old == new else [(path, old, new)]


def _optional(hint: Any) -> Any:
    """Returns the type X of `X | None`, for a placeholder."""
    inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return typing.get_origin(inner) or inner


def _value(hint: Any, raw: Any, path: str) -> Any:
    """Returns a value of the tree, checked against its annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if choices_of(hint) and type(None) not in args:
        return _variant(choices_of(hint), raw, path)
    if origin in (Union, types.UnionType) and type(None) in args:
        if raw is None:
            return None
        rest = [arg for arg in args if arg is not type(None)]
        return _value(rest[0] if len(rest) == 1 else Union[tuple(rest)], raw, path)  # noqa: UP007
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast(type, hint), raw, path)
    if kind := kind_in(hint):  # or the type of a part, as text
        return _value(kind if isinstance(raw, Mapping) else str, raw, path)
    if origin in (Union, types.UnionType):  # of scalars
        for arg in args:
            _check_annotation(arg, path)
        if not isinstance(raw, args) or (isinstance(raw, float) and not math.isfinite(raw)):
            words = ", ".join(_WORDS[arg] for arg in args)
            raise UserError(f"{path} is {raw!r}; it must be one of: {words}.")
        return raw
    if origin is Literal:
        if raw not in args:
            near = difflib.get_close_matches(str(raw), [str(arg) for arg in args], 1)
            hint_text = f" (did you mean {near[0]!r}?)" if near else ""
            names = ", ".join(repr(arg) for arg in args)
            raise UserError(f"{path} is {raw!r}; it must be one of {names}{hint_text}.")
        return raw
    if origin is tuple:
        return _tuple(args, raw, path)
    if origin is dict:
        if not isinstance(raw, Mapping):
            raise UserError(f"{path} is a group of named entries, not {raw!r}.")
        _check_names(raw, path, args[0])
        return {str(key): _value(args[1], item, f"{path}.{key}") for key, item in raw.items()}
    return _scalar(hint, raw, path)


def _check_annotation(hint: Any, path: str) -> None:
    if hint not in (*_WORDS, dict, list):
        raise UserError(
            f"{path} has the annotation {hint}, which no key can have. Use bool, int, float, str, "
            "Literal, X | None, tuple[X, ...], dict[str, X] or a dataclass of these."
        )


def _scalar(hint: type, raw: Any, path: str) -> Any:
    _check_annotation(hint, path)
    if isinstance(raw, dict):
        _check_names(raw, path)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw) if abs(raw) < 2**1000 else math.inf
    if not isinstance(raw, hint) or (isinstance(raw, bool) and hint is not bool):
        kind = "" if raw is None else f" ({type(raw).__name__})"
        raise UserError(f"{path} is {raw!r}{kind}; it must be {_WORDS.get(hint, hint)}.")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise UserError(f"{path} is {raw!r}; it must be a finite number.")
    return raw


def _check_names(raw: Mapping[Any, Any], path: str, hint: Any = str) -> None:
    """Raises if a dictionary has keys that are not text, because a saved config makes them text."""
    odd = [key for key in raw if not isinstance(key, str)]
    if odd or hint is not str:
        raise UserError(f"{path} has keys of another type than str ({odd}); write them as text.")


def _tuple(args: tuple[Any, ...], raw: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, tuple | list):
        raise UserError(f"{path} is {raw!r}; it must be a tuple, such as {_example(args)}.")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(raw)
    if len(args) != len(raw):
        raise UserError(f"{path} is {tuple(raw)!r}; it must have {len(args)} elements.")
    return tuple(
        _value(arg, item, f"{path}[{i}]")
        for i, (arg, item) in enumerate(zip(args, raw, strict=True))
    )


def _example(args: tuple[Any, ...]) -> str:
    """Returns an example of a tuple with elements of these types, for messages."""
    words = {int: "1", float: "0.5", str: "'text'"}
    one = [words.get(arg) or _example(typing.get_args(arg)) for arg in args if arg is not Ellipsis]
    return f"({one[0]},)" if len(one) == 1 else f"({', '.join(one)})"


def _variant(choices: tuple[Any, ...], raw: Any, path: str) -> Any:
    """Parses one of several dataclasses, which the group's tag selects."""
    if isinstance(raw, ml_collections.ConfigDict):
        raw = raw.to_dict()
    if hasattr(raw, "saved_form"):  # a part whose file is not imported
        return raw
    if not isinstance(raw, Mapping):
        raise UserError(f"{path} is a group of keys, not {raw!r}: set its single keys instead.")
    tag, names = tag_of(choices[0]), named(choices)
    if raw.get(tag) not in list(names):  # which hashes nothing: a file may hold a list there
        given = f"is {raw[tag]!r}" if tag in raw else "is missing"
        raise UserError(f"{path}.{tag} {given}; it must be one of {', '.join(map(repr, names))}.")
    return parse(names[raw[tag]], _switched(names, raw, tag, path), path)


def _switched(
    names: Mapping[str, Any], raw: Mapping[str, Any], tag: str, path: str
) -> Mapping[str, Any]:
    """Converts a group of another variant whose tag alone was changed.

    Shared keys stay, new keys get their defaults, and old keys must have their defaults.
    """
    wanted = names[raw[tag]]
    keys = set(hints_of(wanted))
    strange = set(raw) - keys
    for name, cls in names.items():
        if cls is wanted or set(raw) != set(hints_of(cls)) or set(raw) == keys:
            continue
        old = complete(cls, {tag: name})
        if any(old.get(key) != raw[key] for key in strange):
            raise UserError(
                f"{path}.{tag} is {raw[tag]!r}, but the other keys are those of {name!r}: give the "
                f"whole group in a config file, as recipe.entry(config.{wanted.__name__}(), ...)."
            )
        return complete(wanted, {key: value for key, value in raw.items() if key in keys})
    return raw
