"""HTML as nested calls. Every text is escaped unless it is `Html` already."""

from collections.abc import Container, Iterable, Sequence
from html import escape as _escape
from importlib import resources

Child = object  # Html, a text or number, None, or an iterable of these
_VOID = {"img", "meta"}
_LONE = {*_VOID, "circle", "line", "path"}  # elements without content
STACKED = 4  # maximum number of columns that a phone shows side by side
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


class Cell(Html):
    """Complete cell of a table."""

    __slots__ = ()


def text(value: object) -> Html:
    """Escapes a value for an element or an attribute.

    Control characters and lone surrogates, which HTML forbids, become U+FFFD.
    """
    if isinstance(value, Html):
        return value
    clean = str(value).translate(_CONTROL).encode("utf-16", "surrogatepass")
    return Html(_escape(clean.decode("utf-16", "replace")))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """Builds an element.

    Args:
      *children: its content; None is left out, lists and generators are flattened.
      **attributes: a last underscore is dropped (`class_`), others become dashes; None and False
        are left out, True has no value.
    """
    attribute_texts = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            attribute_texts.append(f" {key}")
        elif value is not None and value is not False:
            attribute_texts.append(f' {key}="{text(value)}"')
    inside = join_html(children)
    if name in _LONE and not inside:
        return Html(f"<{name}{''.join(attribute_texts)}{'' if name in _VOID else '/'}>")
    return Html(f"<{name}{''.join(attribute_texts)}>{inside}</{name}>")


def join_html(children: Iterable[Child]) -> Html:
    """Concatenates children."""
    return Html("".join(_flat(child) for child in children))


def cell(content: Child, look: str, share: str = "") -> Cell:
    """Builds a table cell with style classes (`look`), colored on `share` percent of its width."""
    return Cell(tag("td", content, class_=look, style=f"--s:{share}%" if share else None))


def html_table(
    heads: Sequence[Child],
    rows: Iterable[Html | Sequence[Child]],
    number_columns: Container[int] = (),
) -> Html:
    """Builds a table in a container that scrolls on narrow screens.

    With many columns and rows of plain cells, a phone shows each row as a list instead.

    Args:
      rows: complete `tr` elements, or contents of cells; the first cell names the row.
      number_columns: indices of the columns with numbers.
    """
    rows = list(rows)
    stacked = len(heads) > STACKED and not any(isinstance(row, Html) for row in rows)
    styles = ["n" if i in number_columns else None for i in range(len(heads))]

    def build_row(row: Html | Sequence[Child]) -> Html:
        if isinstance(row, Html):
            return row
        cells = (
            content
            if isinstance(content, Cell)
            else tag("td", content, class_=style, data_head=head if stacked else None)
            for content, style, head in zip(row[1:], styles[1:], heads[1:], strict=True)
        )
        return tag("tr", tag("th", row[0], scope="row"), cells)

    top = (
        tag("th", x, scope="col", class_=column_style)
        for x, column_style in zip(heads, styles, strict=True)
    )
    parts = tag("thead", tag("tr", top)), tag("tbody", map(build_row, rows))
    look = "stacked" if stacked else None
    return tag("div", tag("table", parts, class_=look), class_="scroll", tabindex=0)


def document(title: str, *body: Child, css: str = "") -> str:
    """Builds a self-contained page for light and dark screens, with additional `css` rules."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style("big_retrieval.report", "style.css") + css)),
    )
    page = tag("html", head, tag("body", body), lang="en")
    return join_html([Html("<!DOCTYPE html>\n"), page]) + "\n"


def style(package: str, name: str) -> str:
    """Reads a style sheet of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _flat(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Iterable) and not isinstance(child, str):
        return join_html(child)
    return text(child)
