"""A configuration as the Python file that makes it, to be read and edited."""

import dataclasses
import importlib.util
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval import config as configs
from big_retrieval.config import Config, schema
from big_retrieval.errors import UserError
from big_retrieval.io import durable

WIDTH = 100
SECTIONS = (  # title, keys in the order in which they are written
    ("Run", ("seed", "total_steps", "total_epochs", "total_examples", "stop_after", "batch_size",
             "microbatch", "log_every", "eval_every", "eval_every_epochs", "checkpoint_every",
             "checkpoint_every_epochs", "best_metric", "best_mode", "final_weights", "hang_after",
             "report", "dtype", "mesh")),
    ("Model", ("towers", "init", "fields", "topology", "tokenizer")),
    ("Objective", ("labels", "losses")),
    ("Optimiser", ("optimizer",)),
    ("Data", ("data", "negatives", "loader", "evals")),
)  # fmt: skip
HEAD = '''"""{about}
"""

from big_retrieval import config
from big_retrieval.config import recipe


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.base()
'''
TAIL = "    return recipe.runlocal(c, keep_data=True) if args.runlocal else c\n"


def write(path: Path, config: Config, about: str, notes: Mapping[str, Sequence[str]]) -> None:
    """Writes a config file, and makes sure that it makes this configuration.

    Args:
      path: of the file.
      config: what the file makes.
      about: the file's docstring.
      notes: title of a section -> comments in it, such as why it is so.

    Raises:
      UserError: the file makes another configuration, which is a mistake of this module.
    """
    durable.write_bytes(path, source_of(config, about, notes).encode())
    spec: Any = importlib.util.spec_from_file_location("written_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = configs.load(module.get_config())
    if made != config:
        found = schema.differences(schema.to_plain(config), schema.to_plain(made))
        raise UserError(f"{path} makes another configuration ({found[:1]}): please report this.")


def source_of(config: Config, about: str, notes: Mapping[str, Sequence[str]]) -> str:
    """The text of a config file; see `write`."""
    base, lines = Config(), []
    for title, keys in SECTIONS:
        own = [line for key in keys for line in _changes(f"c.{key}", config, base, key)]
        if own:
            lines += ["", f"    # {title}"]
            lines += [f"    # {line}" for note in notes.get(title, ()) for line in _wrap(note)]
            lines += [f"    {line}" for line in own]
    return HEAD.format(about=about.strip()) + "\n".join(lines) + "\n" + TAIL


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 8, break_long_words=False, break_on_hyphens=False)


def _changes(place: str, tree: Any, base: Any, key: str) -> Iterable[str]:
    """Statements that make a key of `base` that of `tree`."""
    value, old = getattr(tree, key), getattr(base, key)
    if value == old:
        return
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name in old and type(old[name]) is type(part):
                for field in dataclasses.fields(part):
                    yield from _changes(f"{place}.{name}.{field.name}", part, old[name], field.name)
            else:
                yield from _assign(f"{place}.{name}", part)
    elif dataclasses.is_dataclass(value) and type(value) is type(old):
        for field in dataclasses.fields(value):
            yield from _changes(f"{place}.{field.name}", value, old, field.name)
    else:
        yield from _assign(place, value)


def _assign(place: str, value: Any) -> Iterable[str]:
    """A statement, on several lines where one is too long."""
    line = f"{place} = {written(value, 'recipe.entry')}"
    if len(line) + 4 <= WIDTH or not dataclasses.is_dataclass(value):
        return [line]
    first = f"    config.{type(value).__name__}(),"
    return [f"{place} = recipe.entry(", first, *_arguments(value), ")"]


def _arguments(part: Any) -> Iterable[str]:
    """The keys of a call, a line each; parts that do not fit into a line are broken, too."""
    for key, value in _own(part):
        line = f"    {key}={written(value)},"
        if len(line) + 8 <= WIDTH or not dataclasses.is_dataclass(value):
            yield line
            continue
        yield f"    {key}=config.{type(value).__name__}("
        yield from (f"    {each}" for each in _arguments(value))
        yield "    ),"


def written(value: Any, entry: str = "") -> str:
    """A value as Python: a part as the call that makes it, with the keys that it changes.

    Args:
      value: a part, a number, a text, a tuple or None.
      entry: the function around the outermost part; "": the part's own call.
    """
    if not dataclasses.is_dataclass(value):
        if isinstance(value, tuple):
            inner = ", ".join(written(each) for each in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        return repr(value).replace("'", '"') if _plain(value) else repr(value)
    keys = ", ".join(f"{key}={written(each)}" for key, each in _own(value))
    name = f"config.{type(value).__name__}"
    if entry:
        return f"{entry}({name}()" + (f", {keys}" if keys else "") + ")"
    return f"{name}({keys})"


def _plain(value: Any) -> bool:
    """Whether a text may stand between double quotes."""
    return isinstance(value, str) and '"' not in value and "\\" not in value and "'" not in value


def _own(part: Any) -> list[tuple[str, Any]]:
    """The keys of a part that are not at their default, but for its type."""
    default = type(part)()
    return [
        (field.name, getattr(part, field.name))
        for field in dataclasses.fields(part)
        if field.name != "type" and getattr(part, field.name) != getattr(default, field.name)
    ]
