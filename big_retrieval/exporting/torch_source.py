"""Python source, put together: what a program uses of some files, and values in ruff's form.

The files of big_retrieval/exporting/pytorch/ are read, not imported, as they need PyTorch.
"""

import ast
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "pytorch"
WIDTH = 100  # columns
_OWN = "big_retrieval."


@dataclass(frozen=True)
class Definition:
    """A class, a function or a constant of a file.

    Attributes:
      text: its source, with the comments above it.
      node: its syntax.
      place: of its file and line, for an order.
    """

    text: str
    node: ast.stmt
    place: tuple[int, int]


class SourceFiles:
    """What some files define and import.

    Args:
      files: Python files; of two definitions of a name that of the later file counts.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.definitions: dict[str, Definition] = {}
        self._imports: dict[str, tuple[str, str]] = {}  # local name -> module, name; "": itself
        for number, file in enumerate(files):
            self._read(file.read_text(encoding="utf-8"), number)

    def _read(self, source: str, number: int) -> None:
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import):
                self._imports |= {(a.asname or a.name): (a.name, "") for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {(a.asname or a.name): (node.module or "", a.name) for a in node.names}
                own = (node.module or "").startswith(_OWN)
                self._imports |= {} if own else found
            elif name := _name_of(node):
                text = _text(node, lines)
                self.definitions[name] = Definition(text, node, (number, node.lineno))

    def needed(self, program: str) -> list[str]:
        """The names of all definitions that a program uses, each behind those that it uses."""
        whole = ast.parse(program)
        found: list[str] = []
        seen = {_name_of(node) for node in whole.body}

        def visit(tree: ast.AST) -> None:
            used = used_names(tree) & self.definitions.keys()
            for name in sorted(used, key=lambda name: self.definitions[name].place):
                if name not in seen:
                    seen.add(name)
                    visit(self.definitions[name].node)
                    found.append(name)

        visit(whole)
        return found

    def file(self, docstring: str, program: str) -> str:
        """The source of a file: a program, with the imports and definitions that it uses."""
        used = [self.definitions[name].text for name in self.needed(program)]
        body = "\n\n\n".join([*used, program])
        gap = "\n\n\n" if body.startswith(("@", "class", "def")) else "\n\n"
        return f"{docstring}\n\n{self.imports(body)}{gap}{body}\n"

    def defaults(self, name: str) -> dict[str, Any]:
        """The arguments of a class's constructor, in their order; `...` for one without a default.

        Raises:
          KeyError: there is no such class, or it has no constructor of its own.
        """
        node = self.definitions[name].node
        inits = (each for each in ast.walk(node) if getattr(each, "name", "") == "__init__")
        found = next(inits, None)
        if not isinstance(found, ast.FunctionDef):
            return {}
        arguments, values = found.args.args[1:], found.args.defaults
        values = [None] * (len(arguments) - len(values)) + list(values)
        pairs = [*zip(arguments, values, strict=True)]
        pairs += zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
        return {argument.arg: _value(default) for argument, default in pairs}

    def imports(self, program: str) -> str:
        """The import statements of a program, as ruff sorts them."""
        used = sorted(used_names(ast.parse(program)) & self._imports.keys())
        groups: dict[bool, list[tuple[int, str, str]]] = {True: [], False: []}
        modules: dict[str, list[str]] = {}
        for local in used:
            module, name = self._imports[local]
            if name:
                modules.setdefault(module, []).append(name)
            else:
                text = f"import {module}" + ("" if local == module else f" as {local}")
                groups[_is_standard(module)].append((0, module, text))
        for module, names in modules.items():
            text = f"from {module} import {', '.join(sorted(names, key=_kind_and_name))}"
            groups[_is_standard(module)].append((1, module, text))
        blocks = [[text for *_, text in sorted(groups[key])] for key in (True, False)]
        return "\n\n".join("\n".join(block) for block in blocks if block)


def used_names(tree: ast.AST) -> set[str]:
    """All names that a piece of syntax mentions."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _name_of(node: ast.stmt) -> str:
    """What a statement at the top of a file defines; "": nothing."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def _text(node: Any, lines: list[str]) -> str:
    """The source of a statement, with its decorators and the comments above it."""
    decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
    first = min([node.lineno, *decorators]) - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])


def _value(default: ast.expr | None) -> Any:
    try:
        return ... if default is None else ast.literal_eval(default)
    except ValueError:  # a name
        return ...


def _is_standard(module: str) -> bool:
    """Whether a module comes with Python."""
    return module.split(".")[0] in sys.stdlib_module_names


def _kind_and_name(name: str) -> tuple[int, str]:
    """ruff's order of the names of one import: constants, classes, functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name


def methods(node: Any, source: str) -> dict[str, str]:
    """Name -> source, of the methods of a class; `source` is that of the class alone."""
    lines, start = source.splitlines(), node.lineno - 1
    found = {}
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            first = min([each.lineno, *(one.lineno for one in each.decorator_list)])
            assert each.end_lineno is not None
            found[each.name] = "\n".join(lines[first - 1 - start : each.end_lineno - start])
    return found


class Code(str):
    """An expression that stands for itself in `literal`."""


def literal(value: Any) -> str:
    """A value as Python, strings in double quotes."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        text = repr(value)
        body = text[1:-1].replace("\\'", "'")
        return text if '"' in body else f'"{body}"'
    if isinstance(value, tuple | list):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(x)}" for key, x in value.items()) + "}"
    return repr(value)


def call(head: str, items: Collection[str], indent: int = 0, ends: str = "()") -> str:
    """`head(item, item)` in ruff's form: in one line, or the items in one, or each in its own.

    Args:
      head: what stands in front of the bracket.
      items: arguments, or entries of a dictionary.
      indent: spaces in front of all.
      ends: the two brackets.
    """
    space, inner = " " * indent, ", ".join(items)
    line = f"{space}{head}{ends[0]}{inner}{ends[1]}"
    if len(line) <= WIDTH:
        return line
    if len(inner) + indent + 4 > WIDTH or ends != "()":
        inner = f",\n{space}    ".join(items) + ","
    return f"{space}{head}{ends[0]}\n{space}    {inner}\n{space}{ends[1]}"
