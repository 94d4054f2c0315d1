"""Class names and prompts from a file, such as CLIP's for ImageNet.

    {"imagenet": {"classes": ["tench", "goldfish"], "templates": ["a photo of a {}."]}}

A class may also be a list of names of equal weight: ["happy", "smiling"]. A third list "ids" has
the labels of the classes in the data, in the same order: ["n01440764", "n01443537"].
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
from big_retrieval.io.space import reason

log = logging.getLogger(__name__)
KEYS = {"classes": ("classes",), "prompts": ("prompts", "templates")}
FORM = '{"classes": ["cat", "dog"], "templates": ["a photo of a {}."]}'
SHOWN = 5  # classes with the same names in a warning
MOST_TEXTS = 12  # maximum number of texts per class and prompt, after repeating names

Class = str | tuple[str, ...]  # one or several names


class ListedClasses(NamedTuple):
    classes: tuple[Class, ...] = ()
    prompts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # empty if the file has none


def read_names(text: str, path: str) -> ListedClasses:
    """Reads class names, prompts and ids from a JSON file.

    Args:
      text: the file, and after a # the keys of the object in it ("prompts.json#imagenet"). The
        object has a list of classes under the first key that begins with "classes", and a list of
        texts under the first key that begins with "prompts" or "templates".
      path: config key that messages name.
    """
    name, _, keys = text.partition("#")
    try:
        content: Any = json.loads(read_text(name))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: {name} is not readable JSON ({reason(error)}). Write a file such as {FORM}, "
            f"or set {path.removesuffix('.file')}.classes and .prompts."
        ) from None
    for key in filter(None, keys.split("/")):
        if not isinstance(content, dict) or key not in content:
            raise UserError(f"{path}: {name} has no {keys!r}; give the keys that it has.")
        content = content[key]
    location = f"{path}: {text}"
    if not isinstance(content, dict):
        raise UserError(f"{location} is not an object; it needs {FORM}.")
    prompts = tuple(_text(value, location) for value in _list(content, "prompts", location))
    classes = tuple(_class(value, location) for value in _list(content, "classes", location))
    if _names_per_class(classes) > MOST_TEXTS:
        raise UserError(
            f"{location} has classes with very different numbers of names. Give every class one "
            "name, or the same number."
        )
    for prompt in prompts:
        if "{}" not in prompt:
            raise UserError(f"{location}: {prompt!r} needs a {{}} for the class name.")
    ids = content.get("ids", [])
    if not isinstance(ids, list) or len(ids) not in (0, len(classes)):
        raise UserError(f"{location}: ids must be a list of {len(classes)} texts, one per class.")
    return ListedClasses(classes, prompts, tuple(_text(value, location) for value in ids))


def names_of(label: Class) -> tuple[str, ...]:
    """Returns all names of a class; the report shows the first one."""
    return (label,) if isinstance(label, str) else label


def fill_prompts(classes: Sequence[Class], prompts: Sequence[str]) -> list[str]:
    """Fills the prompts, which have {} for a name, with the names of all classes, class by class.

    All classes get the same number of texts: names are repeated if a class has fewer than others.
    Each name of a class has the same weight in means over its texts.
    """
    count = _names_per_class(classes)
    repeated = [names * (count // len(names)) for names in map(names_of, classes)]
    return [
        prompt.replace("{}", name) for names in repeated for name in names for prompt in prompts
    ]


def same_classes(classes: Sequence[Class]) -> np.ndarray | None:
    """Returns the first class with the same names (ignoring case) for each class, int64 [C].

    Warns of such classes; None if all names differ.
    """
    first: dict[frozenset[str], int] = {}
    keys = ({normalize_text(x, ignore_case=True) for x in names_of(label)} for label in classes)
    same = np.array([first.setdefault(frozenset(key), i) for i, key in enumerate(keys)])
    later = np.flatnonzero(same != np.arange(len(same))).tolist()
    if not later:
        return None
    names = [f"{names_of(classes[i])[0]!r} ({same[i]} and {i})" for i in later]
    more = f" and {len(later) - SHOWN:,} more" if len(later) > SHOWN else ""
    log.warning(
        f"classes have the same names: {', '.join(names[:SHOWN])}{more}; if scores are equal, "
        "argmax predicts the first class, and images of the other class count as wrong"
    )
    return same


def _names_per_class(classes: Sequence[Class]) -> int:
    """Returns the number of names per class after repeating them."""
    return math.lcm(*(len(names_of(label)) for label in classes))


def _list(content: dict[str, Any], kind: str, location: str) -> list[Any]:
    values = next((x for key, x in content.items() if key.startswith(KEYS[kind])), None)
    if not isinstance(values, list) or not values:
        raise UserError(f"{location} has no list of {kind}; it needs {FORM}.")
    return values


def _class(value: Any, location: str) -> Class:
    if isinstance(value, list) and value:
        names = tuple(_text(name, location) for name in value)
        return names if len(names) > 1 else value[0]
    return _text(value, location)


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{location} has {value!r:.60}; write a text that is not empty.")
    return value
