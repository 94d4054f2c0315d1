"""Parts of saved runs whose file is not imported."""

import abc
import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, NoReturn

from big_retrieval.config.registry import Plugin
from big_retrieval.errors import PluginNeeded


@dataclass(frozen=True)
class Foreign:
    """A part of a saved run whose file is not imported; it has keys, but its methods raise."""

    saved_form: Mapping[str, Any]  # keys and values
    plugin: Plugin
    path: str  # in the configuration, for messages
    side: ClassVar[str] = "target"  # a foreign field of another side stops the loading
    graded: ClassVar[bool] = True  # unknown; True: a ranking reads it and raises

    @property
    def type(self) -> Any:
        """The tag of the part."""
        return self.saved_form.get("type")

    def shapes(self) -> dict[str, Any]:
        return {}

    def check_data(self, context: Any) -> NoReturn:
        """Raises as `work` does, before the first evaluation."""
        self.work()

    def work(self, *args: Any, **keys: Any) -> NoReturn:
        """Raises a PluginNeeded that names the file; replaces all abstract methods of the kind."""
        raise PluginNeeded(
            f"{self.path} is of the type {self.type!r}, which {self.plugin.where} defines: give "
            "this file as --plugins=FILE, or in Python as load(..., plugins=[FILE])."
        )

    def __reduce__(self) -> Any:
        return make_foreign, (type(self).__bases__[1], self.saved_form, self.plugin, self.path)


def make_foreign(kind: Any, saved_form: Mapping[str, Any], plugin: Plugin, path: str) -> Any:
    """Returns a `Foreign` that is also an instance of a kind's base class."""
    return _foreign_class(kind)(saved_form, plugin, path)


@functools.cache
def _foreign_class(kind: Any) -> Any:
    attributes = dict.fromkeys(kind.__abstractmethods__ - {"shapes"}, Foreign.work)
    # Keys of all parts of the kind, such as `constraint`, have no default on the class.
    for key in getattr(kind, "__dataclass_fields__", {}).values():
        if key.default_factory is not MISSING:
            attributes[key.name] = key.default_factory()
    return abc.ABCMeta(f"Foreign{kind.__name__}", (Foreign, kind), attributes)
