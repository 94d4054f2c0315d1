"""Grad-CAM of a trained dense model: relevance of patches and words for the score of a pair.

inference/gradcam.py has the definition.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from big_retrieval.config import Config
from big_retrieval.data.build import make_readers
from big_retrieval.data.in_memory import Values
from big_retrieval.errors import UserError
from big_retrieval.explain.pages import page
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.attributions import READING, attributed
from big_retrieval.report.gradcam import PAIRS, Attribution, attribute
from big_retrieval.report.html import tag
from big_retrieval.report.numbers import number

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

PAGE = "explain.html"


def gradcam(
    model: "TrainedModel",
    text: str,
    image: Any,
    text_field: str | None = None,
    image_field: str | None = None,
) -> Attribution:
    """Computes the relevance of patches and words for the score of a text with an image.

    Args:
      model: a dense model with a 'vit' and a 'bert' tower.
      image: a path, a PIL image or a uint8 array [H, W, 3].
      text_field: None for the only text field.
      image_field: None for the only image field.

    Returns:
      Relevances (not negative) for the whole score and for each pair of class tokens.

    Raises:
      UserError: a field or its tower does not fit, the text is empty, or the image cannot be read.
    """
    if not text.strip():
        raise UserError("The text to explain is empty.")
    fields = (
        text_field or _only_field(model.config, "text"),
        image_field or _only_field(model.config, "image"),
    )
    if reason := model.encoder.gradcam_obstacle(*fields):
        raise UserError(reason)
    readers = make_readers(model.config, model.tokenizer)
    picture = readers[fields[1]].value(Values([image], model.config.fields[fields[1]]), 0, 0)
    return attribute(model.encoder, model.weights, readers, fields, [(text, picture)])[0]


def _only_field(config: Config, modality: str) -> str:
    fields = [name for name, field in config.encoded.items() if field.modality == modality]
    if len(fields) != 1:
        names = f"{', '.join(fields)}. Name one by {modality}_field" if fields else "none"
        raise UserError(f"Grad-CAM needs one {modality} field; the model has: {names}.")
    return fields[0]


def lines(attribution: Attribution, image: str, count: int) -> str:
    """Formats the scores and at most `count` words for the terminal; `image` is a name."""
    x = attribution
    out = [f"{x.text} × {image}", f"  the score is {number(x.score)}"]
    if len(x.pair_scores) > 1:
        scores = ", ".join(number(score, 3) for score in x.pair_scores.tolist())
        out.append(f"  the {len(x.pair_scores)} pairs of class tokens have: {scores}")
    largest, order = x.words.max(initial=0.0), (-x.words).argsort(kind="stable")[:count]
    width = max((len(x.tokens[index]) for index in order), default=0)
    for rank, index in enumerate(order.tolist(), 1):
        share = float(x.words[index]) / float(largest) if largest > 0 else 0.0
        out.append(f"  {rank:>3}  {x.tokens[index]:<{width}}  {share:.2f}")
    row, column = divmod(int(x.image.argmax()), x.image.shape[1])
    out.append(f"  the patch with the largest relevance: row {row}, column {column}")
    return "\n".join(out)


def write_attributions(
    attributions: Sequence[Attribution], images: Sequence[str], folder: Path, title: str
) -> Path:
    """Writes the heat maps as files, and a page with all of them; returns its path.

    Args:
      images: name of each image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = zip(attributions, images, strict=True)
    described = [{"name": name, **attribution.describe()} for attribution, name in named]
    for index, content in enumerate(described, 1):
        maps = {"picture": content["picture"], "whole": content["map"]}
        maps |= {f"pair-{pair['pair']:02}": pair["map"] for pair in content["pairs"]}
        for name, uri in maps.items():
            head, _, data = uri.partition(";base64,")
            file = folder / f"{index:02}-{name}.{head.rpartition('/')[2]}"
            write_bytes(file, base64.b64decode(data))
    is_cut = any(len(x.pair_scores) > PAIRS for x in attributions)
    note = f" At most {PAIRS} pairs are shown." if is_cut else ""
    body = [tag("p", READING + note, class_="note"), *map(attributed, described)]
    write_bytes(folder / PAGE, page(title, body).encode())
    return folder / PAGE
