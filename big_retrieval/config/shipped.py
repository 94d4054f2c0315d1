"""Configs and launch scripts that come with the package.

In a checkout, and where it is installed with `pip install --editable`, they are the folders configs
and launch of the checkout; otherwise `setup.py` has copied both into the folder _shipped of the
package.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
COPIED = "_shipped"  # as in setup.py


def folder(name: str) -> Path | None:
    """The folder "configs" or "launch"; None: the package was installed without it.

    Args:
      name: of the folder.
    """
    copied, checkout = PACKAGE / COPIED, PACKAGE.parent
    if copied.is_dir():
        return copied / name
    return checkout / name if (checkout / "launch" / "local.sh").is_file() else None


def configs() -> dict[str, Path]:
    """The configs by name, e.g. "quickstart", in alphabetical order."""
    place = folder("configs")
    files = () if place is None else place.glob("*.py")
    return {file.stem: file for file in sorted(files) if not file.stem.startswith("_")}


def resolve(text: str) -> str:
    """The value of --config or --sweep with the package's file in the place of its name.

    Args:
      text: "quickstart:runlocal" names a config that comes with the package, and
        "configs/sweeps/FILE.py:argument" any of its files by its path in a checkout. A file that is
        here comes first.
    """
    name, colon, argument = text.partition(":")
    path, place = Path(name), folder("configs")
    if path.is_file() or place is None:
        return text
    file = configs().get(name)
    if file is None and path.parts[:1] == ("configs",):
        file = place.joinpath(*path.parts[1:])
    return f"{file}{colon}{argument}" if file is not None and file.is_file() else text


def summary(file: Path) -> str:
    """The first sentence of a config file's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.split("\n\n")[0].split())
    place = line.find(". ")
    return line if place < 0 else line[: place + 1]
