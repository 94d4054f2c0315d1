"""Grad-CAM of texts and images: what a reader is shown of it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from PIL import Image

from big_retrieval.data.fields.reader import FieldReader, stack
from big_retrieval.data.fields.texts import Text
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.errors import Damaged
from big_retrieval.evals.heat_maps import SIDE, enlarged, heat
from big_retrieval.evals.thumbnails import SIDE as SMALL
from big_retrieval.evals.thumbnails import data_uri, shrink
from big_retrieval.inference.encoder import Encoder
from big_retrieval.inference.gradcam import GradCam

PAIRS = 16  # class-token pairs that are shown at most
RECORDS, FEW = 3, 3  # records of a report, and their class-token pairs


@dataclass(frozen=True)
class Attribution:
    """Where the score of one text with one image comes from.

    Attributes:
      text: the text.
      picture: what the model saw, uint8 [S, S, 3].
      tokens: T tokens of the text, without special ones.
      score: of the topology, without the logit scale.
      pair_scores: of the M pairs of class tokens, [M].
      image: of the patches, [R, R], not negative.
      image_pairs: the same of each pair of class tokens, [M, R, R].
      words: of the tokens, [T], not negative.
      word_pairs: the same of each pair of class tokens, [M, T].
    """

    text: Text
    picture: np.ndarray
    tokens: tuple[str, ...]
    score: float
    pair_scores: np.ndarray
    image: np.ndarray
    image_pairs: np.ndarray
    words: np.ndarray
    word_pairs: np.ndarray

    def describe(self, count: int = PAIRS, side: int = SIDE) -> dict[str, Any]:
        """All of it, ready for JSON; pictures are data URIs, and values shares of their largest.

        Args:
          count: class-token pairs at most, those with the largest scores.
          side: pixels of the pictures, at least.
        """
        shown = [] if len(self.pair_scores) == 1 else np.argsort(-self.pair_scores, kind="stable")
        return {
            "text": self.text if isinstance(self.text, str) else " · ".join(self.text),
            "picture": data_uri(Image.fromarray(enlarged(self.picture, side))),
            **self._map(self.score, self.image, self.words, side),
            "pairs": [
                {
                    "pair": int(j) + 1,
                    **self._map(
                        float(self.pair_scores[j]), self.image_pairs[j], self.word_pairs[j], side
                    ),
                }
                for j in shown[:count]
            ],
        }

    def _map(self, score: float, patches: np.ndarray, words: np.ndarray, side: int) -> dict:
        most = float(np.max(words, initial=0.0))
        shares = [round(float(x) / most, 3) if most > 0 else 0.0 for x in words]
        return {
            "score": round(score, 4) if np.isfinite(score) else None,
            "map": data_uri(heat(self.picture, patches, float(patches.max()), side)),
            "words": [list(pair) for pair in zip(self.tokens, shares, strict=True)],
        }


def attribute(
    encoder: Encoder,
    weights: Any,
    readers: Mapping[str, FieldReader],
    fields: tuple[str, str],
    pairs: Sequence[tuple[Text, np.ndarray]],
) -> list[Attribution]:
    """Grad-CAM of some texts with their images.

    Args:
      encoder: encodes on the devices.
      weights: the parameters.
      readers: field name -> how it is read.
      fields: the text field and the image field.
      pairs: text and image, as the readers give them to evaluations.

    Raises:
      UserError: a field or its tower has no Grad-CAM.
    """
    text, image = fields
    tokenizer = readers[text].tokenizer
    assert tokenizer is not None  # of a model that has a text tower
    values = zip(fields, zip(*pairs, strict=True), strict=True)
    arrays = {name: stack(readers[name], each) for name, each in values}
    found = encoder.gradcam(weights, arrays, text, image).positive()
    out = []
    for row, (words, picture) in enumerate(pairs):
        ids = arrays[text]["ids"][row][arrays[text]["mask"][row]]
        kept = [place for place, i in enumerate(ids) if int(i) not in tokenizer.special_ids]
        tokens = tuple(tokenizer.id_to_token(int(ids[place])) for place in kept)
        out.append(_attribution(found, row, words, picture, tokens, kept))
    return out


def _attribution(
    found: GradCam,
    row: int,
    text: Text,
    picture: np.ndarray,
    tokens: tuple[str, ...],
    kept: Sequence[int],
) -> Attribution:
    """One row, of its text the tokens that are no special ones."""
    return Attribution(
        text,
        picture,
        tokens,
        float(found.scores.whole[row]),
        found.scores.pairs[row],
        found.image.whole[row],
        found.image.pairs[row],
        found.text.whole[row][kept],
        found.text.pairs[row][:, kept],
    )


def of_records(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Some evenly spaced records with the first text of each, ready for JSON.

    Args:
      encoder: encodes on the devices.
      weights: the parameters.
      source: the records.
      readers: field name -> how it is read.
      names: the two fields of an evaluation.

    Returns:
      As `Attribution.describe`, with `record`; [] where the model has no Grad-CAM for the fields.
    """
    by_kind = {readers[name].field.modality: name for name in names}
    if set(by_kind) != {"text", "image"} or jax.process_count() > 1:
        return []  # one process alone reads texts and pictures, and could not run the others
    fields = by_kind["text"], by_kind["image"]
    if encoder.gradcam_obstacle(*fields):
        return []
    read: dict[int, tuple[Text, np.ndarray]] = {}
    for record in evenly_spaced(len(source), RECORDS).tolist():
        with suppress(Damaged):
            text, picture = (readers[name].value(source, record, 0) for name in fields)
            if picture is not None:  # of an optional field
                read[record] = text, picture
    found = attribute(encoder, weights, readers, fields, [*read.values()]) if read else []
    return [
        {
            "record": record,
            **replace(each, picture=np.asarray(shrink(each.picture))).describe(FEW, SMALL),
        }
        for record, each in zip(read, found, strict=True)
    ]
