"""Dataclasses of the configuration: their paths in a tree, their keys and variants."""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union


def groups_in(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the dataclasses of a tree with their paths, a group before its entries."""
    if isinstance(tree, Mapping):
        children = tree.items()
    elif isinstance(tree, tuple | list):
        children = enumerate(tree)
    elif dataclasses.is_dataclass(tree):
        yield path, tree
        children = [(key.name, getattr(tree, key.name)) for key in dataclasses.fields(tree)]
    else:
        return
    for key, child in children:
        yield from groups_in(child, f"{path}.{key}")


@functools.cache  # evaluating annotations took half of the time of reading a config
def hints_of(cls: Any) -> Mapping[str, Any]:
    """Returns the annotations of a dataclass's keys."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def members_of(hint: Any) -> tuple[Any, ...]:
    """Returns X and Y of `X | Y`; other annotations alone."""
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def kind_of(hint: Any) -> Any:
    """Returns the base class of parts in an annotation such as `Tower` or `str | Topology`."""
    return next((arg for arg in members_of(hint) if _is_kind(arg)), None)


def _is_kind(cls: Any) -> bool:
    """Returns True for the base class of a kind of parts, which has no key `type`."""
    return hasattr(cls, "registered") and "type" not in getattr(cls, "__dataclass_fields__", {})


def variants_of(hint: Any) -> dict[str, Any]:
    """Returns type -> dataclass of a group of keys; {} if the annotation has no types."""
    classes = [arg for arg in members_of(hint) if dataclasses.is_dataclass(arg)]
    if kind := kind_of(hint):
        classes = kind.registered()
    elif len(classes) < 2 or not all("type" in hints_of(cls) for cls in classes):
        return {}
    return {typing.get_args(hints_of(cls)["type"])[0]: cls for cls in classes}


def variants_at(hint: Any, raw: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Returns `variants_of` the group at a path."""
    variants = variants_of(hint)
    if not keys:
        return variants
    if typing.get_origin(hint) is dict:
        inner = typing.get_args(hint)[1]
    else:
        inner = hints_of(variants[raw["type"]] if variants else hint)[keys[0]]
    return variants_at(inner, raw[keys[0]], keys[1:])


def entry_kind(cls: Any, key: str, entry: str) -> Any:
    """Returns the dataclass of a new entry of the group `cls.key` by its name; None if unknown."""
    hint = hints_of(cls).get(key)
    if typing.get_origin(hint) is not dict:
        return None
    value = typing.get_args(hint)[1]
    if _is_kind(value):
        return variants_of(value).get(entry) if value.named_by_type else None
    return value if dataclasses.is_dataclass(value) else None
