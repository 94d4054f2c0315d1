"""Conversion between typed dataclasses and ConfigDicts, with strict checks.

Config files and the command line change the ConfigDict form of the defaults
(`big_retrieval.config`); `parse` turns that back into dataclasses and rejects unknown keys and
wrong types.

Supported annotations: bool, int, float, str and unions of these, Literal, `X | None`, tuple[X,
...], tuple[X, Y], dict[str, X], dataclasses, unions of dataclasses with a Literal key `type`, and
the base class of a kind of parts, which stands for all registered parts (`config/registry.py`).
"""

import dataclasses
import difflib
import itertools
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypeVar

import ml_collections
from ml_collections import config_dict

from big_retrieval.config.annotations import hints_of, kind_of, members_of, variants_of
from big_retrieval.errors import UserError
from big_retrieval.io.manifest import to_json

T = TypeVar("T")
Unknown = Callable[[Any, Any, str], Any] | None  # see `parse`
USUAL_NAMES = {"learning_rate": "lr", "epochs": "total_epochs", "steps": "total_steps"}
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}


def to_config_dict(tree: Any) -> ml_collections.ConfigDict:
    """Returns the ConfigDict form of a dataclass.

    `None` of an optional key becomes a typed placeholder, so that the command line can assign it.
    """
    hints = hints_of(type(tree))

    def editable(value: Any, hint: Any = None) -> Any:
        if value is None and hint is not None:
            return config_dict.placeholder(_optional(hint))
        if dataclasses.is_dataclass(value):
            return to_config_dict(value)
        if isinstance(value, Mapping):
            return ml_collections.ConfigDict({key: editable(x) for key, x in value.items()})
        return value

    return ml_collections.ConfigDict(
        {key: editable(getattr(tree, key), hint) for key, hint in hints.items()}
    )


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


def parse(cls: type[T], raw: Any, path: str = "config", unknown: Unknown = None) -> T:
    """Builds the dataclass `cls` from a ConfigDict or a dictionary.

    Raises a UserError for an unknown key (with the nearest known one), a missing key, or a wrong
    type.

    Args:
      unknown: only for saved trees. Missing keys then get their defaults, and a part of an unknown
        type becomes the result of `unknown(kind, group, path)`; None raises the error.
    """
    raw, hints = _group(raw, path), hints_of(cls)
    for key in raw:
        if key not in hints:
            raise UserError(unknown_key(path, str(key), hints, raw))
    missing = [key for key in hints if key not in raw]
    if missing and not unknown:
        raise UserError(
            f"{path} has lost its {'keys' if len(missing) > 1 else 'key'} {', '.join(missing)}: "
            f"change single keys ({path}.{next(iter(raw), missing[0])}=...) instead of replacing "
            "the group."
        )
    return cls(
        **{
            key: parse_value(hint, raw[key], f"{path}.{key}", unknown)
            for key, hint in hints.items()
            if key in raw
        }
    )


def _group(raw: Any, path: str) -> Mapping[str, Any]:
    if isinstance(raw, ml_collections.ConfigDict):
        return raw.to_dict()
    if not isinstance(raw, Mapping):
        raise UserError(f"{path} is a group of keys, not {raw!r}: set its single keys instead.")
    return raw


def unknown_key(
    path: str, key: str, keys: Iterable[str], tree: Mapping[str, Any] | None = None
) -> str:
    """Returns the error message for an unknown key of a group, with the nearest known one.

    A key of the whole configuration is also searched in the groups of `tree`, its values.
    """
    keys = list(keys)
    paths = keys_named(tree, key) if tree and path == "config" else []
    near = [name for name in paths if name != f"{path}.{key}"][:1]
    near = near or [f"{path}.{name}" for name in difflib.get_close_matches(key, keys, 1, 0.5)]
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(keys))}."
    return f"{path}.{key} is not a key of the configuration; {hint}"


def keys_named(tree: Mapping[str, Any], name: str, path: str = "config") -> list[str]:
    """Returns the paths of keys with a name or usual synonym, shortest first (`USUAL_NAMES`)."""
    name, paths = USUAL_NAMES.get(name, name), []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            paths += keys_named(value, name, f"{path}.{key}")
        elif key == name:
            paths.append(f"{path}.{key}")
    return sorted(paths, key=lambda x: x.count("."))


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
    inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return typing.get_origin(inner) or inner


def parse_value(hint: Any, raw: Any, path: str, unknown: Unknown = None) -> Any:
    """Returns a value of the tree, checked against its annotation, as `parse` does."""
    members, variants, kind = members_of(hint), variants_of(hint), kind_of(hint)
    if raw is None and NoneType in members:
        return None
    if variants and (str not in members or isinstance(raw, Mapping)):
        raw = _group(raw, path)
        if raw.get("type") in list(variants):  # a list hashes nothing
            cls = variants[raw["type"]]
            return parse(cls, raw if unknown else _switched(variants, raw, path), path, unknown)
        if kind and unknown and (part := unknown(kind, raw, path)) is not None:
            return part
        problem = f"is {raw['type']!r}" if "type" in raw else "is missing"
        custom = f' Register a custom part with @config.register("{kind.kind}").' if kind else ""
        choices = ", ".join(map(repr, variants))
        raise UserError(f"{path}.type {problem}; it must be one of {choices}.{custom}")
    if kind and unknown and raw not in list(variants):  # a type given as text
        unknown(kind, {"type": raw}, path)
    values = [arg for arg in members if arg not in (NoneType, kind)]
    if len(values) > 1:
        return _scalar_of(values, raw, path)
    (hint,) = values
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast(type, hint), raw, path, unknown)
    if origin is Literal:
        if raw not in args:
            near = difflib.get_close_matches(str(raw), [str(arg) for arg in args], 1)
            hint_text = f" (did you mean {near[0]!r}?)" if near else ""
            names = ", ".join(map(repr, args))
            raise UserError(f"{path} is {raw!r}; it must be one of {names}{hint_text}.")
        return raw
    if origin is tuple:
        return _tuple(args, raw, path, unknown)
    if origin is dict:
        if not isinstance(raw, Mapping):
            raise UserError(f"{path} is a group of named entries, not {raw!r}.")
        _check_names(raw, path, args[0])
        return {key: parse_value(args[1], x, f"{path}.{key}", unknown) for key, x in raw.items()}
    return _scalar(hint, raw, path)


def _scalar_of(kinds: Sequence[type], raw: Any, path: str) -> Any:
    for kind in kinds:
        _check_annotation(kind, path)
    if not isinstance(raw, tuple(kinds)) or (isinstance(raw, float) and not math.isfinite(raw)):
        names = ", ".join(_WORDS[kind] for kind in kinds)
        raise UserError(f"{path} is {raw!r}; it must be one of: {names}.")
    return raw


def _check_annotation(hint: Any, path: str) -> None:
    if hint not in (*_WORDS, dict, list):
        raise UserError(
            f"{path} has the annotation {hint}, which no key can have. Use bool, int, float, str, "
            "Literal, X | None, tuple[X, ...], dict[str, X], a dataclass of these, or several "
            "dataclasses with a key `type`."
        )


def _scalar(hint: type, raw: Any, path: str) -> Any:
    _check_annotation(hint, path)
    if isinstance(raw, dict):
        _check_names(raw, path)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw) if abs(raw) < 2**1000 else math.inf
    if not isinstance(raw, hint) or (isinstance(raw, bool) and hint is not bool):
        suffix = "" if raw is None else f" ({type(raw).__name__})"
        raise UserError(f"{path} is {raw!r}{suffix}; it must be {_WORDS.get(hint, hint)}.")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise UserError(f"{path} is {raw!r}; it must be a finite number.")
    return raw


def _check_names(raw: Mapping[Any, Any], path: str, hint: Any = str) -> None:
    """Rejects keys that are not text, because JSON turns them into text."""
    odd = [key for key in raw if not isinstance(key, str)]
    if odd or hint is not str:
        raise UserError(f"{path} has keys of another type than str ({odd}); write them as text.")


def _tuple(args: tuple[Any, ...], raw: Any, path: str, unknown: Unknown) -> tuple[Any, ...]:
    if not isinstance(raw, tuple | list):
        raise UserError(f"{path} is {raw!r}; it must be a tuple, such as {_example(args)}.")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(raw)
    if len(args) != len(raw):
        raise UserError(f"{path} is {tuple(raw)!r}; it must have {len(args)} elements.")
    pairs = enumerate(zip(args, raw, strict=True))
    return tuple(parse_value(arg, element, f"{path}[{i}]", unknown) for i, (arg, element) in pairs)


def _example(args: tuple[Any, ...]) -> str:
    examples = {int: "1", float: "0.5", str: "'text'"}
    one = [
        examples.get(arg) or _example(typing.get_args(arg)) for arg in args if arg is not Ellipsis
    ]
    return f"({one[0]},)" if len(one) == 1 else f"({', '.join(one)})"


def _switched(variants: Mapping[str, Any], raw: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Converts a group of which only the key `type` was changed.

    Keys of both types keep their values, new keys get their defaults, and keys that only the old
    type has must have their defaults.
    """
    cls = variants[raw["type"]]
    keys = set(hints_of(cls))
    for name, other in variants.items() if set(raw) != keys else ():
        if set(raw) != set(hints_of(other)):
            continue
        old = to_config_dict(other()).to_dict()
        if any(old[key] != raw[key] for key in set(raw) - keys):
            raise UserError(
                f"{path}.type is {raw['type']!r}, but the other keys belong to {name!r}: give "
                f"the whole group in a config file, as recipe.entry(config.{cls.__name__}(), ...)."
            )
        return to_config_dict(cls()).to_dict() | {key: raw[key] for key in keys & set(raw)}
    return raw
