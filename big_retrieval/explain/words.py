"""Words of texts and images: lexical embeddings of a trained model, and bags of words.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
sections 4.3 and 6.2. The embeddings and bags are those of `big-retrieval search` and
`index --binary`, made by the same functions, so that the products of an explanation add up to the
score of the search.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import scipy.sparse

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, normalises
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed, Shared

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

Side = Literal["query", "document"]
# The modes of `search --mode`, and the side that each represents by a bag of words.
BAG_SIDE: dict[str, Side | None] = {"parametric": None, "bag": "query", "binary": "document"}


def words_of(model: "TrainedModel", field: str) -> tuple[str, ...]:
    """What the V terms of a lexical field are called.

    Raises:
      UserError: no such field, or it has no lexical head.
    """
    return model.terms(field).names(model.tokenizer)


def represent(
    model: "TrainedModel",
    items: Sequence[Any],
    field: str,
    side: Side | None = None,
    mode: str = "parametric",
) -> scipy.sparse.csr_array:
    """What a search compares of texts or images, CSR [n, V].

    Args:
      model: with a lexical head.
      items: texts, or pairs of title and text; or images as `TrainedModel.encode_images` takes
        them, by the kind of the field.
      field: which field they are.
      side: whether they are queries or documents; None: gated embeddings, whatever the mode.
      mode: as `shared`.

    Raises:
      UserError: no such field or mode, the field has no lexical head, or an image cannot be read.
    """
    model.terms(field)
    if side is not None and bag_side(mode) == side:
        return bags_of(model, items, field, side)
    if model.config.fields[field].modality == "image":
        return model.encode_images(items, field)
    texts, titles = _texts_and_titles(items)
    return model.encode_texts(texts, field, titles)


def bags_of(
    model: "TrainedModel", items: Sequence[Any], field: str, side: Side
) -> scipy.sparse.csr_array:
    """Bags of words of texts, which no network reads: CSR [n, V].

    Args:
      model: with a lexical head.
      items: texts, or pairs of title and text.
      field: a text field.
      side: of the pair; documents have norm 1 where the field's embeddings have it.
    """
    words = BagOfWordsEncoder(model.terms(field), model.tokenizer)
    part: Any = model.config.fields[field]
    normalise = side == "document" and normalises(model.config, field)
    return words.bag(items, part.length, normalise=normalise)


def _texts_and_titles(items: Sequence[Any]) -> tuple[list[str], Sequence[str]]:
    """Texts, and as many titles, or none where all are empty."""
    pairs = [("", item) if isinstance(item, str) else item for item in items]
    titles = [title for title, _ in pairs]
    return [text for _, text in pairs], titles if any(titles) else ()


def strongest(model: "TrainedModel", item: Any, field: str, count: int | None = 20) -> Listed:
    """(word, value) of the strongest terms of E(x), largest first, of equal ones the first first.

    Args:
      model: with a lexical head.
      item: a text, or an image: a file, a PIL image or a uint8 array [H, W, 3].
      field: which field it is.
      count: how many at most; None: all that the gate leaves.

    Raises:
      UserError: as `represent`.
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
    """The words that a query and a document share, with each word's share of the score.

    The score is that of `big-retrieval search` in the same mode.

    Args:
      model: with lexical heads.
      query: a text or an image.
      document: the other one.
      query_field: which field the query is.
      document_field: which field the document is.
      count: of both only so many of the strongest terms are looked at, as in the authors' code;
        None: all that the gates leave.
      mode: "parametric"; "bag", where the query is the bag of its words, which no network reads
        (VDR, section 4.3); "binary", where the document is.

    Raises:
      UserError: as `represent`, or the mode needs words of an image.
    """
    check_mode(model, query_field, document_field, mode)
    sides = (
        represent(model, [query], query_field, "query", mode),
        represent(model, [document], document_field, "document", mode),
    )
    return listing.shared(*sides, words_of(model, query_field), count)


def bag_side(mode: str) -> Side | None:
    """The side that a mode of search represents by a bag of words; None: no side.

    Raises:
      UserError: there is no such mode.
    """
    if mode not in BAG_SIDE:
        raise UserError(f"the mode is {mode!r}; it must be one of {', '.join(BAG_SIDE)}.")
    return BAG_SIDE[mode]


def check_mode(model: "TrainedModel", query_field: str, document_field: str, mode: str) -> None:
    """Checks that the side of which a mode takes the bag of words has texts.

    Raises:
      UserError: there is no such mode or field, or the field reads images.
    """
    side = bag_side(mode)
    if side is None:
        return
    field = query_field if side == "query" else document_field
    model.terms(field)
    if model.config.fields[field].modality != "text":
        raise UserError(
            f"mode {mode!r} makes a bag of the {side}'s words, and field {field!r} reads "
            "images; give a text on this side, or another mode."
        )


def lexical_fields(config: Config, kind: str = "") -> list[str]:
    """The fields with a lexical head, queries first.

    Args:
      config: of a model.
      kind: "image" or "text" fields only; "": all.
    """
    found = [
        (field.side != "query", name)
        for name, field in config.encoded.items()
        if field.head.lexical and kind in ("", field.modality)
    ]
    return [name for _, name in sorted(found)]


def check_field(config: Config, field: str, kind: str = "") -> None:
    """Raises a UserError unless a field has a lexical head and is of a kind ("": any)."""
    known = lexical_fields(config, kind)
    if not lexical_fields(config):
        raise UserError("the model has no lexical head, so no words to explain it by.")
    if field not in known:
        what = f"{kind} fields" if kind else "fields"
        have = ", ".join(known) or "none"
        raise UserError(f"{field!r} is none of the model's lexical {what} ({have}); name one.")
