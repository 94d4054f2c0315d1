"""Class names and prompts from a file, such as CLIP's for ImageNet."""

import json
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError

KEYS = {"classes": ("classes",), "prompts": ("prompts", "templates")}


def read_names(text: str, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class names and the prompts of a JSON file.

    Args:
      text: the file; behind a #, the keys that lead to the object: "prompts.json#imagenet". It has
        lists of texts under a key that begins with "classes", and under one that begins with
        "prompts" or "templates", of several the first.
      path: of the configuration's key, for messages.

    Raises:
      UserError: no such file or object, or its lists are something else.
    """
    name, _, place = text.partition("#")
    try:
        found: Any = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"{path}: {name} cannot be read: {problem.strerror}.") from None
    except ValueError:
        raise UserError(f"{path}: {name} is not readable JSON.") from None
    for key in filter(None, place.split("/")):
        if not isinstance(found, dict) or key not in found:
            raise UserError(f"{path}: {name} has no {place!r}; give the keys that it has.")
        found = found[key]
    if not isinstance(found, dict):
        raise UserError(f"{path}: {text} is no object with classes and prompts.")
    classes, prompts = (_texts(found, what, text, path) for what in KEYS)
    for prompt in prompts:
        if "{}" not in prompt:
            raise UserError(f"{path}: {text}: {prompt!r} needs a {{}} for the class name.")
    return classes, prompts


def _texts(found: dict[str, Any], what: str, text: str, path: str) -> tuple[str, ...]:
    """A list of texts of an object."""
    key = next((key for key in found if key.startswith(KEYS[what])), None)
    values = found.get(key) if key else None
    if not isinstance(values, list) or not values:
        raise UserError(f"{path}: {text} has no list of {what}.")
    for value in values:
        if not isinstance(value, str) or not value:
            raise UserError(f"{path}: {text}: {key} has {value!r:.60}, which is no text.")
    return tuple(values)
