"""Which terms, patches and words made an answer, for the page of a document."""

import functools
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from big_retrieval.demo.collection import small_file
from big_retrieval.demo.opening import Demo
from big_retrieval.demo.ways import Kind, ModelWay, Way
from big_retrieval.errors import UserError
from big_retrieval.explain.attributions import gradcam
from big_retrieval.explain.listings import FAINT
from big_retrieval.explain.patches import Patches, look
from big_retrieval.report import heat_maps
from big_retrieval.report.gradcam import Attribution

TERMS = 24  # of a document that are listed, at most
SEEN = 8  # images whose patches are kept


@dataclass(frozen=True)
class Explanation:
    """What a document and a query have in common, or what a document has by itself.

    Attributes:
      way: by which it is explained.
      score: of the query; None: there is no query.
      terms: (term, value, share of the score or None), largest first.
      mapped: whether terms have heat maps (`Explainer.heat`).
    """

    way: Way
    score: float | None
    terms: list[tuple[str, float, float | None]]
    mapped: bool


class Explainer:
    """Explains documents of a demo; not safe in threads.

    Args:
      demo: what is searched.
    """

    def __init__(self, demo: Demo):
        self._demo = demo
        self._models = [way for way in demo.ways if isinstance(way, ModelWay)]
        self._patches = functools.lru_cache(maxsize=SEEN)(self._look)

    def terms(self, number: int, kind: Kind, value: Any) -> list[Explanation]:
        """The terms of a document by every lexical model.

        Args:
          number: of the document.
          kind: of the query; with "like" and the document itself there is no query.
          value: of the query.
        """
        out = []
        for way in self._models:
            if not way.lexical or kind not in way.reads:
                continue
            own = kind == "like" and value == number
            row = way.encode(kind, [value])
            found = way.strongest(row, TERMS) if own else way.terms(row, number)
            score = None if own else sum(part for _, part in found)
            listed = [(word, x, x / score if score else None) for word, x in found[:TERMS]]
            mapped = self._demo.collection.has_pictures and _image_field(way) != ""
            out.append(Explanation(way, score, listed, mapped))
        return out

    def heat(self, number: int, term: str, key: str) -> tuple[str, bytes]:
        """Where in its image a document has a term: a picture's type and content.

        Args:
          number: of the document.
          term: of the model.
          key: of a lexical model's way.

        Raises:
          UserError: there is no such term or way, or the document has no image.
        """
        way = self._model(key, lexical=True)
        if term not in way.words:
            raise UserError(f"the model has no term {term!r:.40}.")
        seen = self._patches(number, key)
        values = seen.map(term)
        most = max(float(values.max()), float(seen.values.max()) / FAINT)
        return _png(heat_maps.heat(seen.picture, values, most))

    def attribution(self, number: int, text: str, key: str) -> Attribution:
        """Grad-CAM of a text with the image of a document, by a dense model.

        Raises:
          UserError: there is no such way, the document has no image, or the model has no Grad-CAM.
        """
        way = self._model(key, lexical=False)
        return gradcam(way.model, text, self._image(number), way.text_field, _image_field(way))

    def attributable(self) -> list[ModelWay]:
        """The dense models that have Grad-CAM."""
        if not self._demo.collection.has_pictures:
            return []
        return [
            way
            for way in self._models
            if not way.lexical
            and way.text_field
            and _image_field(way)
            and not way.model.encoder.gradcam_obstacle(way.text_field, _image_field(way))
        ]

    def _model(self, key: str, *, lexical: bool) -> ModelWay:
        known = [way for way in self._models if way.lexical == lexical and _image_field(way)]
        found = [way for way in known if way.key == key]
        if not found:
            raise UserError(f"there is no such way {key!r:.40} that explains images.")
        return found[0]

    def _image(self, number: int) -> Any:
        image = self._demo.collection.image(number)
        if image is None:
            raise UserError(f"document {number} has no image at hand.")
        return image

    def _look(self, number: int, key: str) -> Patches:
        way = self._model(key, lexical=True)
        return look(way.model, self._image(number), _image_field(way))


def _image_field(way: ModelWay) -> str:
    """The image field of the documents; "": they have none."""
    fields = way.model.config.fields
    return next((name for name in way.documents if fields[name].modality == "image"), "")


def _png(image: Image.Image) -> tuple[str, bytes]:
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return "image/png", stream.getvalue()


def drawn(found: Attribution) -> tuple[str, bytes]:
    """The heat map of an attribution: a picture's type and content."""
    most = float(found.image.max())
    return small_file(heat_maps.heat(found.picture, found.image, most))
