"""Parts: groups of the configuration that know all about themselves, found by kind and type.

A part is a frozen dataclass with a tag, `type: Literal["name"] = "name"`, and the methods of the
base class of its kind. `register` makes it known, whether it is this package's or a user's own:

    @register("evaluator")
    @dataclass(frozen=True)
    class Alignment(config.Evaluator):
        type: Literal["alignment"] = "alignment"

A part is defined beside its work; `places.py` says where. Processes that only read data need no
jax, so the base classes in this folder do not import it.
"""

import abc
import dataclasses
import hashlib
import importlib
import importlib.abc
import importlib.util
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from big_retrieval.config.places import modules_of
from big_retrieval.errors import UserError

T = TypeVar("T", bound=type)
KINDS = (
    "evaluator", "field", "head", "loss", "optimizer", "source", "topology", "tower", "tracker",
)  # fmt: skip
_PACKAGE = "big_retrieval."


@dataclass(frozen=True)
class Plugin:
    """Where a part of a user's own is defined; saved with the run."""

    module: str = ""  # name of the Python module
    file: str = ""
    sha256: str = ""  # of the file, when it was imported

    @property
    def where(self) -> str:
        """The file, or of a notebook the module, for messages."""
        return self.file or f"the module {self.module or '(unknown)'}"


class Part(abc.ABC):  # noqa: B024
    """The base of the base classes of all kinds.

    Attributes:
      kind: one of `KINDS`.
      type: the tag of the part, a key of the dataclass.
      named_by_type: whether the command line may add an entry whose name is the type.
    """

    kind: ClassVar[str] = ""
    named_by_type: ClassVar[bool] = False
    type: Any = ""

    @classmethod
    def registered(cls) -> tuple[Any, ...]:
        """The dataclasses that a group of this kind may be; see `big_retrieval.config.schema`."""
        import_shipped(cls.kind)
        return tuple(sorted(_parts[cls.kind].values(), key=_rank))


_parts: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}
_plugins: dict[Any, Plugin] = {}  # of classes that are not this package's
_imported: dict[Path, set[str]] = {}  # file of `import_file` -> `<kind>/<type>` of its parts


def register(kind: str) -> Callable[[T], T]:
    """A decorator that makes a dataclass a part of a kind.

    Args:
      kind: one of `KINDS`.

    Raises:
      UserError: no such kind, no tag, a key without a default, an abstract method is not defined,
        or another file has a part of this kind and type.
    """
    if kind not in KINDS:
        raise UserError(f"there is no kind of parts {kind!r}; known: {', '.join(KINDS)}.")

    def add(cls: T) -> T:
        name, plugin = _tag(cls), _plugin(cls)
        if plugin is not None:
            import_shipped(kind)  # to know their types
        known = _parts[kind].get(name)
        if known is not None:  # perhaps the same file, read again
            theirs = _plugins.get(known)
            if plugin is None or theirs is None or plugin.file != theirs.file:
                raise UserError(
                    f"{cls.__name__}: there is a part of the kind {kind!r} and the type {name!r} "
                    f"already ({theirs.file if theirs else known.__module__}); give this one "
                    "another type."
                )
        for method in sorted(getattr(cls, "__abstractmethods__", ())):
            raise UserError(
                f"{cls.__name__} has no method {method}(), which every part of the kind {kind!r} "
                "needs."
            )
        make_hashable(cls)
        _parts[kind][name] = cls
        if plugin is not None:
            _plugins[cls] = plugin
        return cls

    return add


def _rank(cls: Any) -> int:
    """Sort key: parts are listed in the order of `PLACES`, whoever imported them first."""
    modules = modules_of(cls.kind)
    shipped = cls.__module__.startswith(_PACKAGE)
    return modules.index(cls.__module__) if cls.__module__ in modules else -1 if shipped else 1000


def import_shipped(*kinds: str) -> None:
    """Imports the modules that define this package's parts of some kinds; of all by default."""
    for kind in kinds or KINDS:
        for module in modules_of(kind):
            importlib.import_module(module)


def default(kind: str, tag: str, **keys: Any) -> Callable[[], Any]:
    """A factory of a shipped part, with some keys, for a dataclass's `default_factory`."""

    def make() -> Any:
        import_shipped(kind)
        return _parts[kind][tag](**keys)

    return make


def make_hashable(cls: type) -> None:
    """Lets a frozen dataclass that holds dicts or lists be a key of caches, by its other values."""
    setattr(cls, "__hash__", _hash)  # noqa: B010


def _hash(part: Any) -> int:
    keys = (value for value in vars(part).values() if _hashable(value))
    return hash((type(part), *keys))


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def import_file(path: Path) -> None:
    """Imports a user's file, so that the parts that it defines are known.

    Raises:
      UserError: there is no such Python file, or it cannot be imported.
    """
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--plugins: {path} is no Python file.")
    name = f"plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    before = set(_plugins)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as problem:
        raise UserError(f"--plugins: {path}: {type(problem).__name__}: {problem}") from problem
    _imported[path] = {f"{cls.kind}/{_tag(cls)}" for cls in _plugins if cls not in before}


def plugin_flags() -> str:
    """The flags that import the files of `import_file` again, for commands that are printed."""
    return "".join(f" {shlex.quote(f'--plugins={path}')}" for path in _imported)


def unused(used: Collection[str]) -> list[Path]:
    """The files of `import_file` none of whose parts, nor of what they import, is used.

    Args:
      used: `<kind>/<type>` of the parts of a configuration that are not this package's.
    """
    return [path for path, parts in _imported.items() if not parts & set(used)]


def modules() -> dict[str, str]:
    """Module -> file, of all modules of users' own that define parts here."""
    return {plugin.module: plugin.file for plugin in _plugins.values() if plugin.file}


def make_importable(found: Mapping[str, str]) -> None:
    """Lets this process, a data worker, import modules by the names that `modules` gave elsewhere.

    A config file is a module of a name that no path leads to; what is pickled names it.
    """

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
            file = found.get(fullname)
            return importlib.util.spec_from_file_location(fullname, file) if file else None

    sys.meta_path.append(Finder())


def plugins(tree: Any, *named: Part) -> dict[str, Plugin]:
    """`<kind>/<type>` -> where it is defined, of a tree's parts that are not this package's.

    Args:
      tree: dataclasses, dictionaries and tuples.
      *named: parts that the tree holds by their names only.
    """
    # With the parts that a part inherits from: another version of their files changes it, too.
    classes = {cls for part in (*_parts_in(tree), *named) for cls in type(part).__mro__}
    found = {f"{cls.kind}/{_tag(cls)}": _plugins[cls] for cls in classes if cls in _plugins}
    return dict(sorted(found.items()))


def _parts_in(tree: Any) -> Iterator[Part]:
    if isinstance(tree, Part):
        yield tree
    if isinstance(tree, Mapping):
        children = list(tree.values())
    elif isinstance(tree, tuple | list):
        children = list(tree)
    else:
        children = list(vars(tree).values()) if is_dataclass(tree) else []
    for child in children:
        yield from _parts_in(child)


def _tag(cls: Any) -> str:
    """The type of a part.

    Raises:
      UserError: the class is no dataclass, has no such key, or one of its keys has no default.
    """
    name = cls.__name__
    if not is_dataclass(cls):
        raise UserError(f"{name} is no dataclass; put @dataclass(frozen=True) below @register.")
    hint = typing.get_type_hints(cls).get("type")
    if typing.get_origin(hint) is not Literal:
        key = 'type: Literal["name"] = "name"'
        raise UserError(f"{name} has no type; give it the key {key}.")
    for key in dataclasses.fields(cls):
        if key.default is key.default_factory is dataclasses.MISSING:
            raise UserError(f"{name}: every key of a part needs a default; {key.name} has none.")
    return typing.get_args(hint)[0]


def _plugin(cls: type) -> Plugin | None:
    """Where a class is being defined; None: in this package."""
    if cls.__module__.startswith(_PACKAGE):
        return None
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:  # a notebook
        return Plugin(cls.__module__)
    path = Path(file).resolve()
    return Plugin(cls.__module__, str(path), hashlib.sha256(path.read_bytes()).hexdigest())
