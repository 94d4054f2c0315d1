"""Writes docs/INTEROP_KEYS.md from the tables of `big_retrieval.interop.settings_keys`.

python -m tests.interop.write_keys
"""

from collections.abc import Iterator
from pathlib import Path

from big_retrieval.interop.settings_file import described
from big_retrieval.interop.settings_keys import FILES

PAGE = Path(__file__).parents[2] / "docs" / "INTEROP_KEYS.md"
HEAD = (
    "# Settings keys of third-party models\n\n"
    "Keys of the settings files that `import` and `config.init` read, by file. An importer uses "
    "a key, or accepts\nthe values in the second column because they change no embedding, or "
    "raises an error that names file, key and\nvalue. A key that is not listed is an error. "
    "`python -m tests.interop.write_keys` writes this page.\n"
)


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    for name, keys in FILES.items():
        yield f"## {name}\n\n| key | values | use, or reason |\n| --- | --- | --- |"
        yield from (f"| {' | '.join(row)} |" for row in described(keys))
        yield ""


def page() -> str:
    """The whole page."""
    return "\n".join(lines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
