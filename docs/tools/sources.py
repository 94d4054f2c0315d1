"""A hook of mkdocs: links from the documentation to source files lead to pages with the source.

A link such as `[train/loop.py](../big_retrieval/train/loop.py)` works where the repository is
browsed. In the site, every file that is linked in this way becomes a page under source/.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def _target(page: str, link: str) -> str:
    """The path, from the repository's root, of what a page of docs/ links to."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))


def _is_source(path: str) -> bool:
    return not path.startswith("docs/") and (ROOT / path).is_file()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each source file that a page links to."""
    pages = [file for file in files if file.is_documentation_page()]
    links = {_target(x.src_uri, link) for x in pages for link, _ in LINK.findall(x.content_string)}
    for path in sorted(filter(_is_source, links)):
        language = Path(path).suffix.lstrip(".")
        code = (ROOT / path).read_text(encoding="utf-8")
        head = "---\nsearch: {exclude: true}\nhide: [toc]\n---"
        text = f"{head}\n# {path}\n\n````{language}\n{code}````\n"
        page = File.generated(config, f"source/{path}.md", content=text)
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to source files at their pages; others are left to mkdocs, which checks them."""

    def mended(match: re.Match[str]) -> str:
        path = _target(page.file.src_uri, match[1])
        if not _is_source(path):
            return match[0]
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"]({posixpath.relpath(f'source/{path}.md', start)})"

    return LINK.sub(mended, markdown)
