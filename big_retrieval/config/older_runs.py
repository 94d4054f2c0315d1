"""Values of keys that older runs lack."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from big_retrieval.config.annotations import hints_of, kind_of, variants_of
from big_retrieval.config.schema import to_plain

# Metadata of a dataclass field: its value in older files without the key, if not the default.
BEFORE = "before"

Unknown = Callable[[Any, Any, str], Any]


def complete(hint: Any, raw: Any, unknown: Unknown | None = None, path: str = "config") -> Any:
    """Returns a saved plain tree with the defaults of keys that are missing in it.

    Args:
      hint: the dataclass, or the annotation of a part of it.
      unknown: called as (kind, group, path) for a part of an unknown type; its result replaces the
        group. For a type given as text (`config.topology`), it may raise, and its result is
        ignored. None keeps the group, and missing keys get their defaults instead of `BEFORE`.
    """
    variants, kind = variants_of(hint), kind_of(hint)
    if isinstance(raw, str) and kind and raw not in variants and unknown:
        unknown(kind, {"type": raw}, path)
    if not isinstance(raw, Mapping):
        return raw
    if variants:
        raw = {"type": next(iter(variants)), **raw}  # older files had one type only
        if raw["type"] not in list(variants):  # which hashes nothing: a file may hold a list there
            return unknown(kind, raw, path) if kind and unknown else raw
        hint = variants[raw["type"]]
    if typing.get_origin(hint) is dict:
        inner = typing.get_args(hint)[1]
        return {key: complete(inner, x, unknown, f"{path}.{key}") for key, x in raw.items()}
    if not dataclasses.is_dataclass(hint):
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
