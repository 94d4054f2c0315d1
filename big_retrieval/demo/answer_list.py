"""Lists of answers, and one document with what explains it, as parts of the page."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from big_retrieval.demo import api
from big_retrieval.demo.explaining import Explanation
from big_retrieval.demo.opening import Demo
from big_retrieval.demo.service import FoundDocument, SearchQuery, WayAnswers
from big_retrieval.demo.ways import ModelWay
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import number, percent

MAPPED = 8  # terms of a document that have a heat map
LISTED = 4  # terms of an answer in a list


def plain(demo: Demo, chosen: Sequence[int], previews: Mapping[int, str], stamp: str) -> Html:
    """Documents without scores."""
    items = [_item(demo, place, previews[place], None, None, stamp) for place in chosen]
    return tag("ul", items, class_=_look(demo, alone=True))


def column(
    demo: Demo,
    query: SearchQuery,
    found: WayAnswers,
    previews: Mapping[int, str],
    stamp: str,
    *,
    alone: bool,
) -> Html:
    """What one way found.

    Args:
      demo: what was searched.
      query: what for.
      found: the answers.
      previews: number of a document -> the beginning of its text.
      stamp: of addresses of pictures.
      alone: whether no other way is beside it.
    """
    way = found.way
    times = f"encoding {_ms(found.encode_ms)}, search {_ms(found.search_ms)}"
    head = tag("h3", way.title, id=f"way-{way.key}")
    parts = [tag("p", way.note, " · ", tag("span", times, class_="times"), class_="note")]
    if found.terms:
        terms = [
            tag("li", tag("bdi", term), " ", tag("span", number(value, 2)))
            for term, value in found.terms
        ]
        line = tag("ul", terms, class_="read", aria_label="The query's strongest terms")
        parts.append(tag("div", tag("span", "read as", class_="note"), line, class_="reading"))
    items = [
        _item(demo, each.number, previews[each.number], each, query, stamp)
        for each in found.answers
    ]
    if not items:
        why = "no document shares a term with the query" if query.kind == "text" else "nothing"
        found_none = f"No further answers: {why}." if query.start else f"Nothing found: {why}."
        parts.append(tag("p", found_none, class_="empty"))
    listed = tag("ol", items, start=query.start + 1, class_=_look(demo, alone)) if items else None
    return tag("section", head, parts, listed, aria_labelledby=f"way-{way.key}", class_="way")


def picture(demo: Demo, place: int, text: str, stamp: str, *, lazy: bool = False) -> Html | None:
    """The image of a document; None: there are none."""
    if not demo.collection.has_pictures:
        return None
    about = text or f"document {place}"
    how = "lazy" if lazy else None
    return tag("img", src=api.picture(place, stamp), alt=about, loading=how, decoding="async")


def whole(demo: Demo, place: int, text: str, stamp: str, *, likes: bool) -> Html:
    """A document: its image and its text."""
    shown = picture(demo, place, demo.collection.shown[place], stamp)
    lines = [tag("p", line) for line in text.splitlines() if line.strip()]
    more = (
        tag("a", "More like this", href=f"/neighbours/{place}", class_="button") if likes else None
    )
    return tag("div", shown, tag("div", lines, tag("p", more)), class_="whole")


def explained(place: int, query: SearchQuery, found: Explanation, stamp: str) -> Html:
    """The terms of a document by one model, with bars, and with heat maps in its image."""
    head = found.way.title
    if found.score is None:
        note = "The document's strongest terms."
    elif not found.terms:
        note = "The query and the document share no term."
    else:
        of = f"“{query.value}”" if query.kind == "text" else f"document {query.value}"
        note = f"What the document shares with {of}: the parts of the score {number(found.score)}."
    most = max((value for _, value, _ in found.terms), default=1.0) or 1.0
    rows = [
        tag(
            "li",
            tag("bdi", term, class_="term", title=term),
            _bar(value / most),
            tag("span", number(value, 3) if share is None else percent(share), class_="value"),
        )
        for term, value, share in found.terms
    ]
    maps = None
    if found.mapped and found.terms:
        figures = [
            tag(
                "figure",
                tag(
                    "img",
                    src=api.heat(place, term, found.way.key, stamp),
                    alt=f"where “{term}” is in the image",
                    loading="lazy",
                ),
                tag("figcaption", tag("bdi", term)),
            )
            for term, *_ in found.terms[:MAPPED]
        ]
        maps = tag("div", figures, class_="heats")
    legend = "The redder a patch, the larger the term's value there." if maps else None
    return tag(
        "section",
        tag("h3", head),
        tag("p", note, " ", legend, class_="note"),
        tag("div", tag("ol", rows, class_="bars"), maps, class_="explained"),
    )


def attributed(place: int, words: str, way: ModelWay, stamp: str) -> Html:
    """Where in the image the score of a dense model comes from."""
    source = api.attribution(place, words, way.key, stamp)
    alt = f"where “{words}” is in the image"
    figure = tag("figure", tag("img", src=source, alt=alt), tag("figcaption", "Grad-CAM"))
    note = f"Red patches are those that the score of “{words}” comes from."
    return tag(
        "section",
        tag("h3", way.title),
        tag("p", note, class_="note"),
        tag("div", figure, class_="heats"),
    )


def _look(demo: Demo, alone: bool) -> str:
    kind = "cards" if demo.collection.has_pictures else "rows"
    return f"answers {kind}{' alone' if alone else ''}"


def _item(
    demo: Demo,
    place: int,
    text: str,
    answer: FoundDocument | None,
    query: SearchQuery | None,
    stamp: str,
) -> Html:
    """A document in a list: a link to its neighbours, and one to what explains it."""
    likes = any("like" in way.reads for way in demo.ways)
    name = demo.collection.ids[place]
    shown = picture(demo, place, text, stamp, lazy=answer is not None)
    about = _details(place, query)
    inside = [shown, tag("span", text or name, class_="text")]
    link = tag("a", inside, href=f"/neighbours/{place}" if likes else about, class_="document")
    facts = [tag("a", "details", href=about, aria_label=f"details of {text or name}")]
    if answer is not None:
        facts.insert(0, tag("span", number(answer.score, 3), title="score", class_="points"))
        facts.insert(0, tag("span", f"{answer.rank}.", class_="rank"))
    terms = None
    if answer is not None and answer.terms:
        terms = tag(
            "ul",
            [_term(*each) for each in answer.terms[:LISTED]],
            class_="shares",
            aria_label="Matched terms",
        )
    return tag("li", link, tag("p", facts, class_="below"), terms)


def _term(term: str, value: float, share: float) -> Html:
    title = f"{number(value, 3)} of the score"
    written = tag("span", percent(share), class_="value")
    return tag("li", tag("bdi", term, class_="term"), _bar(share), written, title=title)


def _details(place: int, query: SearchQuery | None) -> str:
    """The address of a document's page, with what it is compared with."""
    if query is None or query.kind == "image":
        return f"/documents/{place}"
    asked = {"query" if query.kind == "text" else "like": query.value}
    return f"/documents/{place}?{urlencode(asked)}"


def _bar(share: float) -> Html:
    """A bar whose length is a share; no style inside of the page, which its policy forbids."""
    width = f"{100 * min(max(share, 0.0), 1.0):.1f}"
    inside = Html(f'<rect width="{width}" height="8"/>')
    return tag("svg", inside, class_="meter", viewBox="0 0 100 8", preserveAspectRatio="none",
               aria_hidden="true", focusable="false")  # fmt: skip


def _ms(milliseconds: float) -> str:
    return f"{number(milliseconds, 2)} ms"
