"""Keys and variants of the configuration's dataclasses, read from their annotations."""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union


@functools.cache  # evaluating annotations took half of the time of reading a config
def hints_of(cls: Any) -> Mapping[str, Any]:
    """Returns the annotations of a dataclass's keys."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Returns the dataclasses that an annotation allows, told apart by their tag; else ()."""
    if _is_kind(hint):
        return hint.registered()
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return ()
    args = tuple(arg for arg in typing.get_args(hint) if arg is not type(None))
    return args if all(dataclasses.is_dataclass(arg) for arg in args) and len(args) > 1 else ()


def kind_in(hint: Any) -> Any:
    """Returns the kind of parts in a union with text, such as `str | Topology`, or None."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return None
    return next((arg for arg in typing.get_args(hint) if _is_kind(arg)), None)


def _is_kind(hint: Any) -> bool:
    """Returns True for the base class of a kind of parts, which has no tag."""
    return hasattr(hint, "registered") and "type" not in getattr(hint, "__dataclass_fields__", {})


def named(choices: Iterable[Any]) -> dict[str, Any]:
    """Returns the dataclasses of a union by the value of their tag."""
    classes = [cls for cls in choices if cls is not type(None)]
    tag = tag_of(classes[0])
    return {typing.get_args(hints_of(cls)[tag])[0]: cls for cls in classes}


def variants(hint: Any, raw: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Returns the dataclasses that the group at a path may be, by the value of their tag.

    Args:
      hint: annotation of the tree.
      raw: the tree, which contains the path.
      keys: the path.

    Returns:
      {} if there is one dataclass only.
    """
    args, choices = typing.get_args(hint), choices_of(hint)
    union = named(choices) if choices else {}
    if not keys:
        return union
    if typing.get_origin(hint) is dict:
        return variants(args[1], raw[keys[0]], keys[1:])
    cls = union[raw[tag_of(choices[0])]] if union else hint
    return variants(hints_of(cls)[keys[0]], raw[keys[0]], keys[1:])


def entry_kind(cls: Any, key: str, entry: str) -> Any:
    """Returns the dataclass of a new entry of the group `cls.key`; None if it is unknown.

    `entry`, the name of the new entry, selects the dataclass if the kind is `named_by_type`.
    """
    hint = hints_of(cls).get(key) if dataclasses.is_dataclass(cls) else None
    args = typing.get_args(hint)
    if typing.get_origin(hint) is not dict:
        return None
    if _is_kind(args[1]):
        return named(args[1].registered()).get(entry) if args[1].named_by_type else None
    return args[1] if dataclasses.is_dataclass(args[1]) else None


def tag_of(cls: Any) -> str:
    """Returns the name of the Literal key that tells the dataclasses of a union apart."""
    hints = hints_of(cls)
    return next(tag for tag in ("type", "kind") if typing.get_origin(hints.get(tag)) is Literal)
