"""Grad-CAM of a trained dense model: which patches and words the score of a pair comes from.

See inference/gradcam.py for the definition.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from big_retrieval.config import Config
from big_retrieval.data.at_hand import Images
from big_retrieval.data.build import make_readers
from big_retrieval.errors import UserError
from big_retrieval.evals.attributions import PAIRS, Attribution, attribute
from big_retrieval.explain.pages import make_folder, page
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.attributions import READING, attributed
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
    """The patches and words that the score of a text with an image comes from.

    Args:
      model: dense, with a 'vit' and a 'bert' tower.
      text: the text.
      image: a file, a PIL image or a uint8 array [H, W, 3].
      text_field: which text field it is; None: the only dense one.
      image_field: which image field it is; None: the only dense one.

    Returns:
      Relevances, not negative, whole and for each pair of class tokens.

    Raises:
      UserError: a field or its tower does not fit, the text is empty, or the image cannot be read.
    """
    if not text.strip():
        raise UserError("the text to explain is empty; give it a word.")
    fields = (
        _field(model.config, "text", text_field, "text_field"),
        _field(model.config, "image", image_field, "image_field"),
    )
    readers = make_readers(model.config, model.tokenizer)
    picture = readers[fields[1]].value(Images([image], model.config.fields[fields[1]]), 0, 0)
    return attribute(model.encoder, model.weights, readers, fields, [(text, picture)])[0]


def _field(config: Config, modality: str, name: str | None, key: str) -> str:
    """The field that is meant.

    Raises:
      UserError: the model has none, or several and none is named.
    """
    if name is not None:
        return name
    known = [name for name, field in config.encoded.items() if field.modality == modality]
    if not known:
        raise UserError(f"Grad-CAM is of a text and an image; the model has no {modality} field.")
    if len(known) > 1:
        raise UserError(
            f"the model has the {modality} fields {', '.join(known)}; name one by {key}."
        )
    return known[0]


def lines(found: Attribution, image: str, count: int) -> str:
    """What the command prints: scores, and the words by their relevance.

    Args:
      found: of a text and an image.
      image: what the image is called.
      count: words at most.
    """
    out = [f"{found.text} × {image}", f"  the score is {number(found.score)}"]
    if len(found.pair_scores) > 1:
        each = ", ".join(number(score, 3) for score in found.pair_scores.tolist())
        out.append(f"  of the {len(found.pair_scores)} pairs of class tokens: {each}")
    most, order = found.words.max(initial=0.0), (-found.words).argsort(kind="stable")[:count]
    wide = max((len(found.tokens[place]) for place in order), default=0)
    for rank, place in enumerate(order.tolist(), 1):
        share = float(found.words[place]) / float(most) if most > 0 else 0.0
        out.append(f"  {rank:>3}  {found.tokens[place]:<{wide}}  {share:.2f}")
    row, column = divmod(int(found.image.argmax()), found.image.shape[1])
    out.append(f"  the patch with the largest relevance: row {row}, column {column}")
    return "\n".join(out)


def write(found: Sequence[Attribution], images: Sequence[str], folder: Path, title: str) -> Path:
    """Writes the heat maps as files, and one page that holds all of them.

    Args:
      found: of texts and images.
      images: what the image of each is called.
      folder: is made where it is not there.
      title: of the page.

    Returns:
      The page.

    Raises:
      UserError: there is a file of the folder's name.
    """
    make_folder(folder)
    named = zip(found, images, strict=True)
    described = [{"name": name, **each.describe()} for each, name in named]
    for place, each in enumerate(described, 1):
        maps = {"picture": each["picture"], "whole": each["map"]}
        maps |= {f"pair-{pair['pair']:02}": pair["map"] for pair in each["pairs"]}
        for name, uri in maps.items():
            head, _, data = uri.partition(";base64,")
            file = folder / f"{place:02}-{name}.{head.rpartition('/')[2]}"
            write_bytes(file, base64.b64decode(data))
    note = (
        f" At most {PAIRS} pairs are shown."
        if any(len(f.pair_scores) > PAIRS for f in found)
        else ""
    )
    body = [tag("p", READING + note, class_="note"), *map(attributed, described)]
    write_bytes(folder / PAGE, page(title, body).encode())
    return folder / PAGE
