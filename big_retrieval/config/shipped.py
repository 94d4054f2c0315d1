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
    """The value of --config with the file in the place of a name.

    Args:
      text: "FILE.py:argument" stays as it is; "quickstart:runlocal" names a config that comes with
        the package, unless there is a file of this name.
    """
    name, colon, argument = text.partition(":")
    file = None if Path(name).is_file() else configs().get(name)
    return text if file is None else f"{file}{colon}{argument}"


def summary(file: Path) -> str:
    """The first sentence of a config file's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.split("\n\n")[0].split())
    place = line.find(". ")
    return line if place < 0 else line[: place + 1]
