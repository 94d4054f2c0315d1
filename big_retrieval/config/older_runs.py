"""Values of keys that older runs lack."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from big_retrieval.config.schema import BEFORE

T = TypeVar("T")


def as_before(tree: T, raw: Any, path: str = "config") -> tuple[T, list[str]]:
    """Sets keys with a value `BEFORE` to it if a saved tree has it or lacks the key.

    Returns:
      The dataclass, and the keys that changed, as "config.key=value".
    """
    if not dataclasses.is_dataclass(tree) or not isinstance(raw, Mapping):
        return tree, []
    changed: dict[str, Any] = {}
    messages: list[str] = []
    for field in dataclasses.fields(tree):
        value, key = getattr(tree, field.name), f"{path}.{field.name}"
        before = field.metadata.get(BEFORE, value)
        if value != before and raw.get(field.name, before) == before:
            changed[field.name] = before
            messages.append(f"{key}={before}")
        elif field.name in raw:
            changed[field.name], found = as_before(value, raw[field.name], key)
            messages += found
    return (dataclasses.replace(tree, **changed), messages) if messages else (tree, [])  # type: ignore
