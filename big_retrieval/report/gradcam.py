"""Grad-CAM of texts and images, as arrays and as JSON values for pages."""

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
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report.heat_maps import SIDE, enlarged, heat
from big_retrieval.report.thumbnails import SIDE as SMALL
from big_retrieval.report.thumbnails import data_uri, shrink

PAIRS = 16  # maximum number of class-token pairs to show
RECORDS, FEW = 3, 3  # records in a report, and class-token pairs of each


@dataclass(frozen=True)
class Attribution:
    """Relevance (not negative) of patches and tokens for the score of one text with one image."""

    text: Text
    picture: np.ndarray  # input of the model, uint8 [S, S, 3]
    tokens: tuple[str, ...]  # T tokens of the text, without special tokens
    score: float  # score of the topology, without the logit scale
    pair_scores: np.ndarray  # scores of the M pairs of class tokens, [M]
    image: np.ndarray  # relevance of the patches, [R, R]
    image_pairs: np.ndarray  # relevance for each pair of class tokens, [M, R, R]
    words: np.ndarray  # relevance of the tokens, [T]
    word_pairs: np.ndarray  # relevance for each pair of class tokens, [M, T]

    def describe(self, count: int = PAIRS, side: int = SIDE) -> dict[str, Any]:
        """Returns JSON values; pictures are data URIs, word relevances are divided by the largest.

        Includes the `count` class-token pairs with the largest scores. Pictures have at least
        `side` pixels.
        """
        pairs = [*zip(self.pair_scores, self.image_pairs, self.word_pairs, strict=True)]
        shown = [] if len(pairs) == 1 else np.argsort(-self.pair_scores, kind="stable")[:count]
        return {
            "text": self.text if isinstance(self.text, str) else " · ".join(self.text),
            "picture": data_uri(Image.fromarray(enlarged(self.picture, side))),
            **self._map(self.score, self.image, self.words, side),
            "pairs": [{"pair": j + 1, **self._map(*pairs[j], side)} for j in map(int, shown)],
        }

    def _map(self, score: float, patches: np.ndarray, relevances: np.ndarray, side: int) -> dict:
        largest = float(np.max(relevances, initial=0.0))
        shares = [round(float(x) / largest, 3) if largest > 0 else 0.0 for x in relevances]
        return {
            "score": round(float(score), 4) if np.isfinite(score) else None,
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
    """Computes Grad-CAM of pairs of a text and an image, as read by the readers of the fields."""
    text, image = fields
    tokenizer = readers[text].tokenizer
    assert tokenizer is not None  # of a model that has a text tower
    values = zip(fields, zip(*pairs, strict=True), strict=True)
    arrays = {name: stack(readers[name], column) for name, column in values}
    maps = encoder.gradcam(weights, arrays, text, image).positive()
    out = []
    for row, (caption, picture) in enumerate(pairs):
        ids = arrays[text]["ids"][row][arrays[text]["mask"][row]]
        positions = [index for index, i in enumerate(ids) if int(i) not in tokenizer.special_ids]
        attribution = Attribution(
            text=caption,
            picture=picture,
            tokens=tuple(tokenizer.id_to_token(int(ids[index])) for index in positions),
            score=float(maps.scores.whole[row]),
            pair_scores=maps.scores.pairs[row],
            image=maps.image.whole[row],
            image_pairs=maps.image.pairs[row],
            words=maps.text.whole[row][positions],
            word_pairs=maps.text.pairs[row][:, positions],
        )
        out.append(attribution)
    return out


def of_records(
    encoder: Encoder,
    weights: Any,
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Computes Grad-CAM of evenly spaced records with their first texts, as JSON values.

    Returns:
      `Attribution.describe` of each record with its index as `record`; empty if the model has no
      Grad-CAM for the two fields, or with several processes.
    """
    by_modality = {readers[name].field.modality: name for name in names}
    # Only the first process calls this, but a computation needs all processes.
    if set(by_modality) != {"text", "image"} or jax.process_count() > 1:
        return []
    fields = by_modality["text"], by_modality["image"]
    if encoder.gradcam_obstacle(*fields):
        return []
    pairs: dict[int, tuple[Text, np.ndarray]] = {}
    for record in evenly_spaced(len(source), RECORDS).tolist():
        with suppress(Damaged):
            text, picture = (readers[name].value(source, record, 0) for name in fields)
            if picture is not None:  # None if an optional field is missing
                pairs[record] = text, picture
    results = attribute(encoder, weights, readers, fields, [*pairs.values()]) if pairs else []
    out = []
    for record, result in zip(pairs, results, strict=True):
        small = replace(result, picture=np.asarray(shrink(result.picture)))
        out.append({"record": record, **small.describe(FEW, SMALL)})
    return out
