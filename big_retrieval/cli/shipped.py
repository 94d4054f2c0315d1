"""Configs and launch scripts of the package.

In a checkout and after `pip install --editable`, they are the folders configs and launch of the
checkout. Otherwise `setup.py` has copied both into the folder _shipped of the package.
"""

import ast
import difflib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
COPIED = "_shipped"  # as in setup.py


def folder(name: str) -> Path | None:
    """Returns the folder "configs" or "launch"; None if it is not installed."""
    copied, checkout = PACKAGE / COPIED, PACKAGE.parent
    if copied.is_dir():
        return copied / name
    return checkout / name if (checkout / "launch" / "local.sh").is_file() else None


def configs() -> dict[str, Path]:
    """Returns the configs by name, e.g. "quickstart", in alphabetical order."""
    root = folder("configs")
    files = () if root is None else root.glob("*.py")
    return {file.stem: file for file in sorted(files) if not file.stem.startswith("_")}


def resolve(text: str) -> str:
    """Returns the value of --config or --sweep with a config's name replaced by its file.

    Args:
      text: "quickstart:runlocal" names a config of the package, and
        "configs/sweeps/FILE.py:argument" a file by its path in a checkout. A file in the working
        directory takes precedence.
    """
    name, colon, argument = text.partition(":")
    path, root = Path(name), folder("configs")
    if path.is_file() or root is None:
        return text
    file = configs().get(name)
    if file is None and path.parts[:1] == ("configs",):
        file = root.joinpath(*path.parts[1:])
    return f"{file}{colon}{argument}" if file is not None and file.is_file() else text


def nearest_file(path: Path, *folders: Path) -> Path | None:
    """Returns the Python file whose name is most similar to a missing file's, or None."""
    places = folders if path.parent == Path() else (path.parent,)
    files = {file.name: file for folder in places for file in folder.glob("*.py")}
    near = difflib.get_close_matches(f"{path.stem}.py", files, 1)
    return files[near[0]] if near else None


def summary(file: Path) -> str:
    """Returns the first sentence of a config file's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.split("\n\n")[0].split())
    end = line.find(". ")
    return line if end < 0 else line[: end + 1]
