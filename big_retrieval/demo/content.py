"""Answers of the demo as JSON values, for programs and for the templates; see docs/DEMO.md."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from big_retrieval.demo import uploads
from big_retrieval.demo.explainer import Explanation
from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.search_modes import ModelMode
from big_retrieval.demo.service import ModeResult, SearchQuery

DIGITS = 6  # of scores and values


class Content:
    """Builds the JSON values of answers; `stamp` lets browsers cache the pictures."""

    def __init__(self, demo: Demo, stamp: str):
        self._demo, self._collection, self._stamp = demo, demo.collection, stamp

    def overview(self) -> dict[str, Any]:
        """Returns the collection, the modes, the limits and the addresses."""
        return {
            "collection": self._collection.name,
            "documents": len(self._collection),
            "pictures": self._collection.has_pictures,
            "modes": [
                {"mode": x.key, "title": x.title, "note": x.note, "reads": sorted(x.reads)}
                for x in self._demo.modes
            ],
            "limits": {
                "query_characters": uploads.MAX_QUERY,
                "body_bytes": uploads.MAX_BODY,
                "image_pixels": uploads.MAX_PIXELS,
                "k": uploads.MAX_PAGE,
                "start_plus_k": uploads.MAX_ANSWERS,
            },
            "routes": {
                "GET /api": "this overview",
                "GET /api/health": "status of the server",
                "GET /api/search?query=&k=&start=&mode=": "search by words",
                "POST /api/search?k=&start=&mode=": "search by the image that is the body",
                "GET /api/neighbors/NUMBER?k=&start=&mode=": "documents like a document",
                "GET /api/documents/NUMBER?query=": "a document and its terms",
                "GET /pictures/NUMBER": "its image",
            },
        }

    def answers(self, query: SearchQuery, results: Sequence[ModeResult]) -> dict[str, Any]:
        """Returns the answers of each mode."""
        is_image = query.kind == "image"
        key = {"text": "query", "image": "image_bytes", "like": "like"}[query.kind]
        return {
            key: len(query.value) if is_image else query.value,
            "start": query.start,
            "k": query.count,
            "modes": [
                {
                    "mode": result.mode.key,
                    "title": result.mode.title,
                    "note": result.mode.note,
                    "encode_ms": round(result.encode_ms, 3),
                    "search_ms": round(result.search_ms, 3),
                    "query_terms": [
                        {"term": term, "value": _rounded(value)} for term, value in result.terms
                    ],
                    "answers": [
                        {
                            "rank": answer.rank,
                            "score": _rounded(answer.score),
                            **self.item(answer.document, answer.preview),
                            "terms": [
                                {"term": term, "value": _rounded(value), "share": _rounded(share)}
                                for term, value, share in answer.terms
                            ],
                        }
                        for answer in result.answers
                    ],
                    "more": result.more,
                }
                for result in results
            ],
        }

    def document(
        self,
        document: int,
        query: SearchQuery,
        text: str,
        explanations: Sequence[Explanation],
        attributable: Sequence[ModelMode] = (),
    ) -> dict[str, Any]:
        """Returns a document, its terms, and the models that have Grad-CAM of the query.

        If there is no query, `query` is the document itself.
        """
        is_alone = query.kind == "like" and query.value == document
        other = {} if is_alone else {"query" if query.kind == "text" else "like": query.value}
        return {
            **self.item(document, text),
            **other,
            "modes": [
                {
                    "mode": x.mode.key,
                    "title": x.mode.title,
                    "score": None if x.score is None else _rounded(x.score),
                    "terms": [self._term(document, x, *term) for term in x.terms],
                }
                for x in explanations
            ],
            "attributions": [
                {
                    "mode": mode.key,
                    "title": mode.title,
                    "heat_map": self._picture(document, query=str(query.value), mode=mode.key),
                }
                for mode in attributable
            ],
        }

    def item(self, document: int, text: str) -> dict[str, Any]:
        """Returns a document with its text, as in every list."""
        has_picture = self._collection.has_pictures
        picture = {"picture": self._picture(document)} if has_picture else {}
        return {"number": document, "id": self._collection.ids[document], **picture, "text": text}

    def _term(
        self, document: int, source: Explanation, term: str, value: float, share: float | None
    ) -> dict[str, Any]:
        out: dict[str, Any] = {"term": term, "value": _rounded(value)}
        if share is not None:
            out["share"] = _rounded(share)
        if source.mapped:
            out["heat_map"] = self._picture(document, term=term, mode=source.mode.key)
        return out

    def _picture(self, document: int, **values: str) -> str:
        parameters = [f"{key}={quote(value, safe='')}" for key, value in values.items()]
        return f"/pictures/{document}?{'&'.join([*parameters, f'v={self._stamp}'])}"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
