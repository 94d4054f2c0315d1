"""A hook of mkdocs: appends a table for each settings file to docs/INTEROP_KEYS.md."""

from collections.abc import Iterator
from typing import Any

from big_retrieval.interop.settings_file import described
from big_retrieval.interop.settings_keys import FILES


def tables() -> Iterator[str]:
    """Yields the lines of the tables."""
    for name, keys in FILES.items():
        yield f"\n## {name}\n\n| key | values | use, or reason |\n| --- | --- | --- |"
        yield from (f"| {' | '.join(row)} |" for row in described(keys))


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Appends the tables to their page."""
    is_page_of_keys = page.file.src_uri == "INTEROP_KEYS.md"
    return "\n".join([markdown, *tables()]) if is_page_of_keys else markdown
