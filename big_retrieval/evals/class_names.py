"""Class names and prompts from a file, such as CLIP's for ImageNet.

    {"imagenet": {"classes": ["tench", "goldfish"], "templates": ["a photo of a {}."]}}

A class may also be a list of names, which count alike: ["happy", "smiling"]. A third list "ids"
holds what labels call the classes, in the same order: ["n01440764", "n01443537"].
"""

import json
import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_text

log = logging.getLogger(__name__)
KEYS = {"classes": ("classes",), "prompts": ("prompts", "templates")}
SHOWN = 5  # classes with the same names that a warning has
MOST_TEXTS = 12  # of a class and prompt, where classes have different numbers of names

Class = str | tuple[str, ...]  # its name, or several of them


class ListedClasses(NamedTuple):
    """What a file lists."""

    classes: tuple[Class, ...] = ()
    prompts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # of the classes; (): the file has none


def read_names(text: str, path: str) -> ListedClasses:
    """The class names, the prompts and the ids of a JSON file.

    Args:
      text: the file; behind a #, the keys that lead to the object: "prompts.json#imagenet". It has
        a list of classes under a key that begins with "classes", and one of texts under one that
        begins with "prompts" or "templates", of several the first.
      path: of the configuration's key, for messages.

    Raises:
      UserError: no such file or object, or its lists are something else.
    """
    name, _, place = text.partition("#")
    try:
        found: Any = json.loads(read_text(name))
    except OSError as problem:
        keys = place.split("/") if place else []
        raise UserError(
            f"{path}: {name} cannot be read: {problem.strerror}; make a JSON file of this form: "
            f"{_form(keys)}, or set {path.removesuffix('.file')}.classes and .prompts instead."
        ) from None
    except ValueError:
        raise UserError(f"{path}: {name} is not readable JSON.") from None
    for key in filter(None, place.split("/")):
        if not isinstance(found, dict) or key not in found:
            raise UserError(f"{path}: {name} has no {place!r}; give the keys that it has.")
        found = found[key]
    if not isinstance(found, dict):
        raise UserError(f"{path}: {text} is no object with classes and prompts.")
    prompts = tuple(_text(value, text, path) for value in _list(found, "prompts", text, path))
    classes = tuple(_class(value, text, path) for value in _list(found, "classes", text, path))
    if _texts_each(classes) > MOST_TEXTS:
        raise UserError(
            f"{path}: {text} has classes of too different numbers of names to count them alike; "
            "give every class one name, or all of them equally many."
        )
    for prompt in prompts:
        if "{}" not in prompt:
            raise UserError(f"{path}: {text}: {prompt!r} needs a {{}} for the class name.")
    ids = found.get("ids", [])
    if not isinstance(ids, list) or len(ids) not in (0, len(classes)):
        raise UserError(
            f"{path}: {text} has ids that are no list of {len(classes)} texts, one a class."
        )
    return ListedClasses(classes, prompts, tuple(_text(each, text, path) for each in ids))


def names_of(each: Class) -> tuple[str, ...]:
    """All names of a class; the first one is what it is called."""
    return (each,) if isinstance(each, str) else each


def filled(classes: Sequence[Class], prompts: Sequence[str]) -> list[str]:
    """The texts of all classes, those of a class side by side and equally many of each.

    Of a class with fewer names than others they are repeated, so that means over its texts are
    those over its names.

    Args:
      classes: their names.
      prompts: with {} for a name.
    """
    each = _texts_each(classes)
    named = [names_of(one) * (each // len(names_of(one))) for one in classes]
    return [prompt.replace("{}", name) for names in named for name in names for prompt in prompts]


def same_classes(classes: Sequence[Class]) -> np.ndarray | None:
    """The first class with the names of each one, whatever their capitals, int64 [C]; warns.

    None: all names differ.
    """
    first: dict[frozenset[str], int] = {}
    keys = ({normalize_text(x, ignore_case=True) for x in names_of(each)} for each in classes)
    same = np.array([first.setdefault(frozenset(key), i) for i, key in enumerate(keys)])
    later = np.flatnonzero(same != np.arange(len(same))).tolist()
    if not later:
        return None
    names = [f"{names_of(classes[i])[0]!r} ({same[i]} and {i})" for i in later]
    more = f" and {len(later) - SHOWN:,} more" if len(later) > SHOWN else ""
    log.warning(
        f"classes have the same names: {', '.join(names[:SHOWN])}{more}; where scores are equal, "
        "images are taken for the first one, as by argmax, and those of the other count as wrong"
    )
    return same


def _texts_each(classes: Sequence[Class]) -> int:
    """Into how many names every class can be repeated."""
    return math.lcm(*(len(names_of(each)) for each in classes))


def _form(keys: Sequence[str]) -> str:
    """How the file looks, the object behind some keys."""
    form: Any = {"classes": ["cat", "dog"], "templates": ["a photo of a {}."]}
    for key in reversed(keys):
        form = {key: form}
    return json.dumps(form)


def _list(found: dict[str, Any], what: str, text: str, path: str) -> list[Any]:
    """A list of an object."""
    key = next((key for key in found if key.startswith(KEYS[what])), None)
    values = found.get(key) if key else None
    if not isinstance(values, list) or not values:
        raise UserError(f"{path}: {text} has no list of {what}; it needs {_form([])}.")
    return values


def _class(value: Any, text: str, path: str) -> Class:
    """A class's name, or its names."""
    if isinstance(value, list) and value:
        names = tuple(_text(name, text, path) for name in value)
        return names if len(names) > 1 else value[0]
    return _text(value, text, path)


def _text(value: Any, text: str, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{path}: {text} has {value!r:.60}, which is no text; write texts.")
    return value
