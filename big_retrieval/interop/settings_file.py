"""Settings files of other libraries: every key is used, known to be harmless, or an error.

`settings_keys` lists the keys of each file with a rule. A reader gets a `SettingsFile`, reads the
keys that it uses, and calls `finish`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_json


@dataclass(frozen=True)
class KeyRule:
    """Rule for one key of a settings file."""

    reason: str  # use of the key, or why it changes nothing
    used: bool = False  # True if an importer reads the key
    values: tuple[Any, ...] | None = None  # harmless values if unread; None for all

    def is_harmless(self, value: Any) -> bool:
        """Returns True if an unread value changes nothing; 0 equals 0.0, but not False."""
        if self.used or self.values is None:
            return not self.used
        is_bool = isinstance(value, bool)
        return any(value == x and is_bool == isinstance(x, bool) for x in self.values)


Keys = Mapping[str, Union[KeyRule, "Keys"]]  # key -> rule, or the keys of an object


def use(reason: str) -> KeyRule:
    """Returns the rule of a key that an importer reads."""
    return KeyRule(reason, used=True)


def harmless(reason: str) -> KeyRule:
    """Returns the rule of a key that changes no embedding, whatever its value."""
    return KeyRule(reason)


def only(
    *values: Any, reason: str = "default of the library; other values are not imported"
) -> KeyRule:
    """Returns the rule of a key with a few values that can be imported."""
    return KeyRule(reason, values=values)


def same(rule: KeyRule, names: str) -> Keys:
    """Returns keys that share a rule."""
    return dict.fromkeys(names.split(), rule)


ARRAYS = harmless("size that the arrays have; the library itself refuses other arrays")
OFF = harmless("only in training: dropout, initial values, memory")
INFO = harmless("information, such as versions, licenses and names of classes")
OTHER_TASK = harmless("only of classifiers, generation or other tasks")
OUTPUT = harmless("additional outputs or speed; embeddings do not change")


class SettingsFile:
    """One object of a settings file; `name` is its location, such as "model_cfg.text_cfg."."""

    def __init__(self, path: Path, values: Any, keys: Keys, name: str = ""):
        if not isinstance(values, Mapping):
            raise UserError(
                f"{path}: {name[:-1]} is {values!r}, not an object with keys; restore it."
            )
        self.path, self._values, self._keys, self._name = path, values, keys, name
        self._read: set[str] = set()
        self._inside: list[SettingsFile] = []

    @classmethod
    def open(cls, path: Path, keys: Keys) -> "SettingsFile":
        """Reads a file; a missing file has no keys."""
        return cls(path, read_json(path) if path.is_file() else {}, keys)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key that the rules list as used; `default` if it is missing."""
        rule = self._keys[key]
        assert isinstance(rule, KeyRule), key
        assert rule.used, key
        self._read.add(key)
        return self._values.get(key, default)

    def number(self, key: str, default: Any = None) -> Any:
        """Returns a number of at least 0; `default` if the key is missing or null."""
        value = self.get(key)
        value = default if value is None else value
        if value is not default and (
            not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e40
        ):
            raise self.refused(key, "it must be a number of at least 0")
        return value

    def inside(self, key: str) -> "SettingsFile":
        """Returns the object at a key; it has no keys if the key is missing or null."""
        keys = self._keys[key]
        assert not isinstance(keys, KeyRule), key
        self._read.add(key)
        inner = SettingsFile(self.path, self._values.get(key) or {}, keys, f"{self._name}{key}.")
        self._inside.append(inner)
        return inner

    def refused(self, key: str, reason: str) -> UserError:
        """Returns the error for a value that cannot be imported."""
        value = self._values.get(key)
        return UserError(f"{self.path}: {self._name}{key} is {value!r}; {reason}.")

    def choice(self, key: str, choices: Mapping[Any, Any], default: Any) -> Any:
        """Returns the entry of `choices` for a value; other values are an error."""
        value = self.get(key, default)
        if isinstance(value, list | Mapping) or value not in choices:
            names = ", ".join(sorted(map(str, choices)))
            raise self.refused(key, f"only these can be imported: {names}")
        return choices[value]

    def finish(self) -> None:
        """Checks that every key was used or is harmless.

        Raises:
          UserError: names the file, the key and its value.
        """
        for key, value in self._values.items():
            rule = self._keys.get(key)
            if key in self._read or (isinstance(rule, KeyRule) and rule.is_harmless(value)):
                continue
            if rule is None:
                raise self.refused(key, "this key is unknown, so its effect cannot be imported")
            if isinstance(rule, KeyRule) and rule.values:
                values = ", ".join(map(repr, rule.values))
                raise self.refused(key, f"only {values} can be imported")
            raise self.refused(key, "it cannot be imported for this model")
        for inner in self._inside:
            inner.finish()


def described(keys: Keys, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields key, allowed values and reason of all keys, for the documentation."""
    for key, rule in keys.items():
        if not isinstance(rule, KeyRule):
            yield from described(rule, f"{prefix}{key}.")
            continue
        values = ", ".join(f"`{value!r}`" for value in rule.values or ()) or "any"
        yield f"{prefix}{key}", "used" if rule.used else values, rule.reason
