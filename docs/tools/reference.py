"""Tables of docs/reference: `python docs/tools/reference.py` updates them; mkdocs expands them.

A row names an object below `big_retrieval`, links to its source and repeats the first sentence of
its docstring, so the pages can be read in the repository. In the site, the full documentation of
all rows follows their table.
"""

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
ROW = re.compile(r"^\| \[`([\w.]+)`\]\(.*$", re.M)
TABLE = re.compile(r"(?:^\| \[`[\w.]+`\]\(.*\n?)+", re.M)


def find_object(name: str) -> Any:
    """Imports a name below `big_retrieval`: a module, or a class or function of a module."""
    try:
        return importlib.import_module(f"big_retrieval.{name}")
    except ModuleNotFoundError:
        module, _, attribute = f"big_retrieval.{name}".rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def updated_row(name: str) -> str:
    """Returns the row of an object: its name, the link to its source, and its summary."""
    documented = find_object(name)
    path = os.path.relpath(inspect.getsourcefile(documented) or "", PAGES)
    summary = (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
    cell = summary.replace("|", "\\|")
    return f"| [`{name}`]({path}) | {cell} |"


def updated_page(markdown: str) -> str:
    """Returns a page with the present links and summaries."""
    return ROW.sub(lambda match: updated_row(match[1]), markdown)


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Appends the full documentation of its objects to every table."""
    if not page.file.src_uri.startswith("reference/"):
        return markdown
    level = 3 if "\n## " in markdown else 2

    def with_details(table: re.Match[str]) -> str:
        options = f"\n    options: {{heading_level: {level}}}\n"
        return "\n".join(
            [table[0], *(f"::: big_retrieval.{x}{options}" for x in ROW.findall(table[0]))]
        )

    return TABLE.sub(with_details, markdown)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(updated_page(path.read_text(encoding="utf-8")), encoding="utf-8")
