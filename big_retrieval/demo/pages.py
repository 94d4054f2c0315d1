"""Pages of the demo, from Jinja2 templates. They work without scripts; demo.js avoids reloads."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from big_retrieval.data.images.decoding import decode
from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.uploads import MAX_ANSWERS, MAX_BODY, MAX_QUERY, READABLE
from big_retrieval.errors import UserError
from big_retrieval.report.numbers import number, percent
from big_retrieval.report.thumbnails import SIDE, data_uri
from big_retrieval.runtime.messages import count_of


class Pages:
    """Fills templates, which escape every value; `stamp` lets browsers cache files."""

    def __init__(self, demo: Demo, stamp: str):
        loader = PackageLoader("big_retrieval.demo")
        self._environment = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._environment.filters.update(
            number=number, percent=percent, count_of=count_of, bar_width=_bar_width
        )
        self._environment.globals.update(
            address=_address,
            stamp=stamp,
            collection=demo.collection,
            reads_images=any("image" in mode.reads for mode in demo.modes),
            has_neighbors=any("like" in mode.reads for mode in demo.modes),
            media_types=",".join(f"image/{name.lower()}" for name in READABLE),
            max_answers=MAX_ANSWERS,
            max_body=MAX_BODY,
            max_query=MAX_QUERY,
        )

    def render(self, template: str, **values: Any) -> bytes:
        """Builds a page as UTF-8."""
        values = {"words": "", "status": "", "title": "", **values}
        page = self._environment.get_template(f"{template}.html").render(values)
        return page.encode("utf-8", "replace")


def _address(path: str, values: dict[str, Any], **more: Any) -> str:
    pairs = {key: value for key, value in (values | more).items() if value not in ("", None)}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _bar_width(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.1f}"


def thumbnail(data: bytes) -> str:
    """Returns a small version of an uploaded image as a data URI."""
    try:
        image = Image.fromarray(decode(data))
    except (ValueError, UserError):
        return "data:,"
    image.thumbnail((2 * SIDE, 2 * SIDE))
    return data_uri(image)
