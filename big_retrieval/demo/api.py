"""What the demo answers to programs, as plain dictionaries for JSON; docs/DEMO.md describes it."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from big_retrieval.demo.explaining import Explanation
from big_retrieval.demo.opening import Demo
from big_retrieval.demo.service import MOST_ANSWERS, PAGE, FoundDocument, SearchQuery, WayAnswers
from big_retrieval.demo.uploads import MOST_BODY, MOST_PIXELS, MOST_QUERY

DIGITS = 6  # of scores and values


def about(demo: Demo) -> dict[str, Any]:
    """What is searched, by which ways, and the addresses."""
    collection = demo.collection
    return {
        "collection": collection.name,
        "documents": len(collection),
        "pictures": collection.has_pictures,
        "ways": [
            {"way": way.key, "title": way.title, "note": way.note, "reads": sorted(way.reads)}
            for way in demo.ways
        ],
        "limits": {
            "query_characters": MOST_QUERY,
            "body_bytes": MOST_BODY,
            "image_pixels": MOST_PIXELS,
            "k": PAGE,
            "start_plus_k": MOST_ANSWERS,
        },
        "routes": {
            "GET /api": "this",
            "GET /api/health": "that it answers",
            "GET /api/search?query=&k=&start=&way=": "search by words",
            "POST /api/search?k=&start=&way=": "search by the image that is the body",
            "GET /api/neighbours/NUMBER?k=&start=&way=": "documents like a document",
            "GET /api/documents/NUMBER?query=": "a document, and its terms",
            "GET /pictures/NUMBER": "its image",
        },
    }


def answers(
    demo: Demo, query: SearchQuery, found: Sequence[WayAnswers], stamp: str
) -> dict[str, Any]:
    """What each way found.

    Args:
      demo: what was searched.
      query: what for.
      found: by each way.
      stamp: of addresses of pictures.
    """
    asked = {"text": "query", "image": "image_bytes", "like": "like"}[query.kind]
    return {
        asked: len(query.value) if query.kind == "image" else query.value,
        "start": query.start,
        "k": query.count,
        "ways": [
            {
                "way": each.way.key,
                "encode_ms": round(each.encode_ms, 3),
                "search_ms": round(each.search_ms, 3),
                "answered_together": each.together,
                "query_terms": _values(each.terms),
                "answers": [_answer(demo, x, stamp) for x in each.answers],
                "more": each.more,
            }
            for each in found
        ],
    }


def _answer(demo: Demo, answer: FoundDocument, stamp: str) -> dict[str, Any]:
    terms = [
        {"term": term, "value": _number(value), "share": _number(share)}
        for term, value, share in answer.terms
    ]
    place = {"rank": answer.rank, "number": answer.number, "score": _number(answer.score)}
    text = demo.collection.shown[answer.number]
    return {**place, **_document(demo, answer.number, stamp), "text": text, "terms": terms}


def document(
    demo: Demo, number: int, query: SearchQuery, text: str, found: Sequence[Explanation], stamp: str
) -> dict[str, Any]:
    """A document.

    Args:
      demo: what it is of.
      number: of the document.
      query: what it is compared with; its own number: nothing.
      text: of the document.
      found: its terms.
      stamp: of addresses of pictures.
    """
    own = query.kind == "like" and query.value == number
    return {
        "number": number,
        **_document(demo, number, stamp),
        "text": text,
        **({} if own else {"query" if query.kind == "text" else "like": query.value}),
        "ways": [
            {
                "way": each.way.key,
                "score": None if each.score is None else _number(each.score),
                "terms": [_term(number, each, *term, stamp) for term in each.terms],
            }
            for each in found
        ],
    }


def _term(
    number: int, found: Explanation, term: str, value: float, share: float | None, stamp: str
) -> dict[str, Any]:
    out: dict[str, Any] = {"term": term, "value": _number(value)}
    if share is not None:
        out["share"] = _number(share)
    if found.mapped:
        out["heat_map"] = heat(number, term, found.way.key, stamp)
    return out


def picture(number: int, stamp: str) -> str:
    """The address of a document's image."""
    return f"/pictures/{number}?v={stamp}"


def heat(number: int, term: str, way: str, stamp: str) -> str:
    """The address of the heat map of a term in a document's image."""
    return f"/pictures/{number}?term={quote(term, safe='')}&way={quote(way)}&v={stamp}"


def attribution(number: int, words: str, way: str, stamp: str) -> str:
    """The address of the heat map of a query in a document's image."""
    return f"/pictures/{number}?query={quote(words, safe='')}&way={quote(way)}&v={stamp}"


def _document(demo: Demo, number: int, stamp: str) -> dict[str, Any]:
    shown = {"picture": picture(number, stamp)} if demo.collection.has_pictures else {}
    return {"id": demo.collection.ids[number], **shown}


def _values(terms: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"term": term, "value": _number(value)} for term, value in terms]


def _number(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
