"""Registry of parts: groups of the configuration with a kind and a type.

A part is a frozen dataclass with a tag, `type: Literal["name"] = "name"`, and the methods of the
base class of its kind. `register` adds parts of the package and of users:

    @register("evaluator")
    @dataclass(frozen=True)
    class Alignment(config.Evaluator):
        type: Literal["alignment"] = "alignment"

`places.py` lists the modules that define the package's parts. Base classes do not import jax,
because processes that only read data run without it.
"""

import abc
import dataclasses
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

from big_retrieval.config.annotations import groups_in
from big_retrieval.config.places import modules_of
from big_retrieval.errors import UserError

T = TypeVar("T", bound=type)
KINDS = (
    "evaluator", "field", "head", "loss", "optimizer", "source", "topology", "tower", "tracker",
)  # fmt: skip
_PACKAGE = "big_retrieval."


@dataclass(frozen=True)
class Plugin:
    """Location of the definition of a user's part; saved with the run."""

    module: str = ""  # name of the Python module
    file: str = ""
    sha256: str = ""  # of the file, when it was imported

    @property
    def where(self) -> str:
        """The file, or the module of a notebook, for messages."""
        return self.file or f"the module {self.module or '(unknown)'}"


class Part(abc.ABC):  # noqa: B024
    """Base class of all kinds of parts.

    A subclass of a kind is a frozen dataclass with the key `type`, registered by `@register(kind)`.
    It may override attributes of the kind by keys or properties.
    """

    kind: ClassVar[str] = ""  # one of `KINDS`
    named_by_type: ClassVar[bool] = False  # the command line may add an entry named by its type
    type: Any = ""  # tag of the part, a key of the dataclass

    def check(self, config: Any, path: str) -> Iterator[str]:
        """Yields an error message for every bad key; `path` is as in `config.evals.test`."""
        yield from ()

    def runlocal(self) -> Any:
        """Returns a small version for `:runlocal`."""
        return self

    @classmethod
    def registered(cls) -> tuple[Any, ...]:
        """Returns the dataclasses that a group of this kind may be."""
        import_shipped(cls.kind)
        modules = modules_of(cls.kind)
        order = {name: index for index, name in enumerate(modules)}
        parts = _parts[cls.kind].values()  # in the order of imports
        return tuple(sorted(parts, key=lambda part: order.get(part.__module__, len(order))))


_parts: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}
_plugins: dict[Any, Plugin] = {}  # of users' classes
_imported: dict[Path, set[str]] = {}  # file of `import_file` -> `<kind>/<type>` of its parts


def register(kind: str) -> Callable[[T], T]:
    """Returns a decorator that registers a dataclass as a part of a kind.

    It raises a UserError if the tag, a default or a method is missing, or if another file has a
    part of this kind and type.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of parts {kind!r}; known: {', '.join(KINDS)}.")

    def add(cls: T) -> T:
        name, plugin = _tag(cls), _plugin(cls)
        if plugin is not None:
            import_shipped(kind)  # to know their types
        existing = _parts[kind].get(name)
        if existing is not None:  # perhaps the same file, read again
            other = _plugins.get(existing)
            if plugin is None or other is None or plugin.file != other.file:
                raise UserError(
                    f"{cls.__name__}: there is a part of the kind {kind!r} and the type {name!r} "
                    f"already ({other.file if other else existing.__module__}); give this one "
                    "another type."
                )
        for method in sorted(getattr(cls, "__abstractmethods__", ())):
            raise UserError(
                f"{cls.__name__} has no method {method}(), which every part of the kind {kind!r} "
                "needs."
            )
        setattr(cls, "__hash__", _hash)  # noqa: B010
        _parts[kind][name] = cls
        if plugin is not None:
            _plugins[cls] = plugin
        return cls

    return add


def import_shipped(*kinds: str) -> None:
    """Imports the modules that define the package's parts of some kinds, by default all."""
    for kind in kinds or KINDS:
        for module in modules_of(kind):
            importlib.import_module(module)


def default(kind: str, tag: str, **keys: Any) -> Callable[[], Any]:
    """Returns a factory of one of the package's parts, for a dataclass's `default_factory`."""

    def make() -> Any:
        import_shipped(kind)
        return _parts[kind][tag](**keys)

    return make


def _hash(part: Any) -> int:
    return hash(repr(part))  # caches need it, and some keys are dictionaries


def import_file(path: Path) -> None:
    """Imports a user's Python file, which registers its parts."""
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--plugins: not a Python file: {path}.")
    before = set(_plugins)
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # it may import files next to it
    try:
        run_file(path, "plugin")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--plugins: {path}: {type(error).__name__}: {error}") from error
    _imported[path] = {f"{cls.kind}/{_tag(cls)}" for cls in _plugins if cls not in before}


class _Uncached(importlib.machinery.SourceFileLoader):
    """Loads a file without a cache, which is stale if the file changes twice within a second."""

    def set_data(self, path: Any, data: Any, *, _mode: int = 0) -> None:
        pass


def run_file(path: Path, prefix: str) -> ModuleType:
    """Runs a user's file as a module in `sys.modules`, as annotations and pickles of parts need."""
    loader = _Uncached(f"{prefix}_{path.stem.replace('.', '_')}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def plugin_flags() -> str:
    """Returns the flags that import the same files again, for printed commands."""
    return "".join(f" {shlex.quote(f'--plugins={path}')}" for path in _imported)


def unused(used: Collection[str]) -> list[Path]:
    """Returns the files of `import_file` that define none of the parts `used` (`<kind>/<type>`)."""
    return [path for path, parts in _imported.items() if not parts & set(used)]


def modules() -> dict[str, str]:
    """Returns module -> file of all modules with users' parts."""
    return {plugin.module: plugin.file for plugin in _plugins.values() if plugin.file}


def make_importable(files: Mapping[str, str]) -> None:
    """Makes modules importable in a data worker, by their names in `modules`.

    Pickled objects name the module of a config file, which Python would not find on its path.
    """

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
            file = files.get(fullname)
            return importlib.util.spec_from_file_location(fullname, file) if file else None

    sys.meta_path.append(Finder())


def plugins(tree: Any, *named: Part) -> dict[str, Plugin]:
    """Returns `<kind>/<type>` -> definition of all users' parts in a tree.

    Args:
      *named: parts that the tree contains by their names only.
    """
    # Includes base classes, because another version of their files changes a part, too.
    parts = [part for _, part in groups_in(tree, "config")]
    classes = {cls for part in (*parts, *named) for cls in type(part).__mro__}
    places = {f"{cls.kind}/{_tag(cls)}": _plugins[cls] for cls in classes if cls in _plugins}
    return dict(sorted(places.items()))


def _tag(cls: Any) -> str:
    """Returns the type of a part, after checks of its class."""
    name = cls.__name__
    if not is_dataclass(cls):
        raise UserError(f"{name} is not a dataclass; put @dataclass(frozen=True) below @register.")
    hint = typing.get_type_hints(cls).get("type")
    if typing.get_origin(hint) is not Literal:
        key = 'type: Literal["name"] = "name"'
        raise UserError(f"{name} has no type; give it the key {key}.")
    for key in dataclasses.fields(cls):
        if key.default is key.default_factory is dataclasses.MISSING:
            raise UserError(f"{name}: every key of a part needs a default; {key.name} has none.")
    return typing.get_args(hint)[0]


def _plugin(cls: type) -> Plugin | None:
    """Returns the location of a class definition; None for the package's classes."""
    if cls.__module__.startswith(_PACKAGE):
        return None
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:  # a notebook
        return Plugin(cls.__module__)
    path = Path(file).resolve()
    return Plugin(cls.__module__, str(path), hashlib.sha256(path.read_bytes()).hexdigest())
