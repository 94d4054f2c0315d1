"""Explanations of an answer: terms, patches and words that its score comes from."""

import functools
from dataclasses import dataclass
from typing import Any

from big_retrieval.demo.collection import small_file
from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.search_modes import Kind, ModelMode, SearchMode
from big_retrieval.errors import UserError
from big_retrieval.explain.attributions import gradcam
from big_retrieval.explain.listings import FAINT
from big_retrieval.explain.patches import Patches, look
from big_retrieval.report import heat_maps

TERMS = 24  # maximum number of listed terms of a document
CACHED = 8  # images whose patches stay in memory


@dataclass(frozen=True)
class Explanation:
    """Terms that a document shares with a query, or the terms of a document."""

    mode: SearchMode
    score: float | None  # score of the query; None without a query
    terms: list[tuple[str, float, float | None]]  # (term, value, share of the score), largest first
    mapped: bool  # terms have heat maps


class Explainer:
    """Explains documents of a demo; not safe in threads."""

    def __init__(self, demo: Demo):
        self._collection = demo.collection
        self._models = [mode for mode in demo.modes if isinstance(mode, ModelMode)]
        self._patches = functools.lru_cache(CACHED)(self._look)

    def terms(self, document: int, kind: Kind, value: Any) -> list[Explanation]:
        """Returns shared terms by lexical model; all terms if the query is the document."""
        out = []
        for mode in self._models:
            if not mode.lexical or kind not in mode.reads:
                continue
            is_alone = kind == "like" and value == document
            row = mode.encode(kind, value)
            terms = mode.strongest(row, TERMS) if is_alone else mode.terms(row, document)
            score = None if is_alone else sum(value_part for _, value_part in terms)
            listed = [(word, x, x / score if score else None) for word, x in terms[:TERMS]]
            mapped = self._collection.has_pictures and mode.document_image != ""
            out.append(Explanation(mode, score, listed, mapped))
        return out

    def heat_map(self, document: int, term: str, key: str) -> tuple[str, bytes]:
        """Draws the values of a term in a document's image; returns media type and content."""
        mode = self._model(key, lexical=True)
        if term not in mode.words:
            raise UserError(f"The model has no term {term!r:.40}.")
        seen = self._patches(document, key)
        values = seen.map(term)
        largest = max(float(values.max()), float(seen.values.max()) / FAINT)
        return small_file(heat_maps.heat(seen.picture, values, largest))

    def attribution(self, document: int, text: str, key: str) -> tuple[str, bytes]:
        """Draws Grad-CAM of a text with a document's image; returns media type and content."""
        mode = self._model(key, lexical=False)
        image = self._image(document)
        result = gradcam(mode.model, text, image, mode.text_field, mode.document_image)
        largest = float(result.image.max())
        return small_file(heat_maps.heat(result.picture, result.image, largest))

    def attributable(self) -> list[ModelMode]:
        """Returns the dense models that have Grad-CAM."""
        if not self._collection.has_pictures:
            return []
        return [
            mode
            for mode in self._models
            if not mode.lexical
            and mode.text_field
            and mode.document_image
            and not mode.model.encoder.gradcam_obstacle(mode.text_field, mode.document_image)
        ]

    def _model(self, key: str, *, lexical: bool) -> ModelMode:
        for mode in self._models:
            if mode.key == key and mode.lexical == lexical and mode.document_image:
                return mode
        raise UserError(f"No mode {key!r:.40} that explains images.")

    def _image(self, document: int) -> Any:
        image = self._collection.image(document)
        if image is None:
            raise UserError(f"Document {document} has no readable image.")
        return image

    def _look(self, document: int, key: str) -> Patches:
        mode = self._model(key, lexical=True)
        return look(mode.model, self._image(document), mode.document_image)
