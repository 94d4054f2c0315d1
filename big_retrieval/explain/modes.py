"""Representations as the modes of search have them: encoded, or the bag of a side's own words.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
section 4.3. The bags are those of `big-retrieval search` and `index --binary`, made by
the same functions, so that the products of an explanation add up to the score of the search.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import scipy.sparse

from big_retrieval.errors import UserError
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, document_bags

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

Side = Literal["query", "document"]
BAGS: dict[str, Side | None] = {"parametric": None, "bag": "query", "binary": "document"}


def is_bag(mode: str, side: Side) -> bool:
    """Whether a side is a bag of words.

    Args:
      mode: of `search --mode`: "parametric", "bag" or "binary".
      side: of the pair.

    Raises:
      UserError: there is no such mode.
    """
    if mode not in BAGS:
        raise UserError(f"the mode is {mode!r}; it must be one of {', '.join(BAGS)}.")
    return BAGS[mode] == side


def check_mode(model: "TrainedModel", fields: Sequence[str], mode: str) -> None:
    """Raises a UserError unless a mode is one, and the side that it makes bags of has texts.

    Args:
      model: of which the fields are.
      fields: that of the query, that of the document.
      mode: as `is_bag`.
    """
    sides: tuple[Side, Side] = ("query", "document")
    for field, side in zip(fields, sides, strict=True):
        if not is_bag(mode, side):
            continue
        model.terms(field)
        if model.config.fields[field].modality != "text":
            raise UserError(
                f"mode {mode!r} makes a bag of the {side}'s words, and field {field!r} reads "
                "images; give a text on this side, or another mode."
            )


def bags_of(
    model: "TrainedModel", items: Sequence[Any], field: str, side: Side
) -> scipy.sparse.csr_array:
    """Bags of words of texts, which no network reads: CSR [n, V].

    Args:
      model: with a lexical head.
      items: texts, or pairs of title and text.
      field: a text field.
      side: of the pair; documents have norm 1 where the field's representations have it.
    """
    words = BagOfWordsEncoder(model.terms(field), model.tokenizer)
    pairs = [("", item) if isinstance(item, str) else item for item in items]
    texts = [text for _, text in pairs]
    titles = [title for title, _ in pairs] if any(title for title, _ in pairs) else ()
    if side == "document":
        return document_bags(words, model.config, field, texts, titles)
    part: Any = model.config.fields[field]
    return words.bag(texts, part.length, titles)
