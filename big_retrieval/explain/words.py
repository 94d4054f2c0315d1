"""Words of texts and images: lexical embeddings of a trained model, and bags of words.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
sections 4.3 and 6.2. `big-retrieval search` and `index --binary` use the same functions, so that
the products of an explanation add up to the score of the search.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import scipy.sparse

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, normalises
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed, Shared

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

Side = Literal["query", "document"]
# Modes of `search --mode`, and the side that each one represents by a bag of words.
BAG_SIDE: dict[str, Side | None] = {"parametric": None, "bag": "query", "binary": "document"}


def words_of(model: "TrainedModel", field: str) -> tuple[str, ...]:
    """Returns the names of the V terms; raises a UserError if the field is not lexical."""
    return model.terms(field).names(model.tokenizer)


def represent(
    model: "TrainedModel",
    items: Sequence[Any],
    field: str,
    side: Side | None = None,
    mode: str = "parametric",
) -> scipy.sparse.csr_array:
    """Encodes texts or images as a search does, CSR [n, V].

    Args:
      items: as in `encode.rows_of`.
      side: "query" or "document"; None for gated embeddings in any mode.
      mode: as in `shared`.
    """
    model.terms(field)  # raises an error if the field is not lexical
    if side is not None and BAG_SIDE[mode] == side:
        return bags_of(model, items, field, side)
    return rows_of(model, items, field, progress=None)


def bags_of(
    model: "TrainedModel", items: Sequence[Any], field: str, side: Side
) -> scipy.sparse.csr_array:
    """Builds bags of words of texts, or (title, text) pairs, without the model.

    Bags of documents have norm 1 if the field's embeddings do.
    """
    encoder = BagOfWordsEncoder(model.terms(field), model.tokenizer)
    field_config: Any = model.config.fields[field]
    normalise = side == "document" and normalises(model.config, field)
    return encoder.bag(items, field_config.length, normalise=normalise)


def strongest(model: "TrainedModel", item: Any, field: str, count: int | None = 20) -> Listed:
    """Returns (word, value) of the strongest terms of E(x), largest first.

    Args:
      item: a text, or an image: a path, a PIL image or a uint8 array [H, W, 3].
      count: maximum number of terms; None for all that the gate keeps.
    """
    return listing.strongest(represent(model, [item], field), words_of(model, field), count)


def shared(
    model: "TrainedModel",
    query: Any,
    document: Any,
    query_field: str = "text",
    document_field: str = "image",
    count: int | None = None,
    mode: str = "parametric",
) -> Shared:
    """Returns the words that a query and a document share, with each word's share of the score.

    The score is equal to the score of `big-retrieval search` in the same mode. The query and the
    document are texts or images.

    Args:
      count: number of strongest terms of each to compare, as in the authors' code; None for all
        that the gates keep.
      mode: "parametric", "bag" (the query is a bag of words; VDR, section 4.3) or "binary" (the
        document is a bag of words).
    """
    check_mode(model, query_field, document_field, mode)
    sides = (
        represent(model, [query], query_field, "query", mode),
        represent(model, [document], document_field, "document", mode),
    )
    return listing.shared(*sides, words_of(model, query_field), count)


def check_mode(
    model: "TrainedModel", query_field: str, document_field: str, mode: str
) -> Side | None:
    """Returns the side that a search mode represents by a bag of words; None for no side."""
    if mode not in BAG_SIDE:
        raise UserError(f"Unknown mode {mode!r}. Use one of {', '.join(BAG_SIDE)}.")
    side = BAG_SIDE[mode]
    if side is not None:
        field = query_field if side == "query" else document_field
        model.terms(field)
        if model.config.fields[field].modality != "text":
            raise UserError(
                f"Mode {mode!r} needs a text as the {side}, but field {field!r} reads images. Use "
                "another mode."
            )
    return side


def lexical_fields(config: Config, modality: str = "") -> list[str]:
    """Returns the names of the lexical fields of a modality ("" for any), queries first."""
    fields = [
        (field.side != "query", name)
        for name, field in config.encoded.items()
        if field.head.lexical and modality in ("", field.modality)
    ]
    return [name for _, name in sorted(fields)]


def choose_field(
    config: Config, name: str | None = None, modality: str = "", other: str = ""
) -> str:
    """Returns the named lexical field, or by default the first one, queries first.

    Args:
      modality: as in `lexical_fields`.
      other: field to avoid if another field exists.
    """
    fields, lexical = lexical_fields(config, modality), ", ".join(lexical_fields(config))
    if not lexical:
        raise UserError("The model has no lexical head, so no words.")
    if not fields or (name is not None and name not in fields):
        label = " ".join(filter(None, (modality, "field", name and repr(name))))
        raise UserError(f"The model has no lexical {label}. It has: {lexical}.")
    return name or next((field for field in fields if field != other), fields[0])
