"""Lists of words from a trained model and a text or an image."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.explain.modes import Side, bags_of, check_mode, is_bag
from big_retrieval.explain.usage import Usage, usage_of
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed, Shared

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

AT_A_TIME = 256  # texts or images of which all representations are held


def words_of(model: "TrainedModel", field: str) -> tuple[str, ...]:
    """What the V terms of a lexical field are called.

    Raises:
      UserError: no such field, or it has no lexical head.
    """
    return model.terms(field).names(model.tokenizer)


def represent(model: "TrainedModel", items: Sequence[Any], field: str) -> Any:
    """The gated representations of texts or images, CSR [n, V].

    Args:
      model: with a lexical head.
      items: texts, or pairs of title and text; or images as `TrainedModel.encode_images` takes
        them, by the kind of the field.
      field: which field they are.

    Raises:
      UserError: no such field, it has no lexical head, or an image cannot be read.
    """
    model.terms(field)
    if model.config.fields[field].modality == "image":
        return model.encode_images(items, field)
    pairs = [("", item) if isinstance(item, str) else item for item in items]
    titles = [title for title, _ in pairs]
    return model.encode_texts([text for _, text in pairs], field, titles if any(titles) else ())


def in_mode(model: "TrainedModel", items: Sequence[Any], field: str, mode: str, side: Side) -> Any:
    """What a mode of search compares of texts or images, CSR [n, V].

    Args:
      model: with a lexical head.
      items: as `represent`.
      field: which field they are.
      mode: as `shared`.
      side: whether they ask or are found.

    Raises:
      UserError: as `shared`.
    """
    if is_bag(mode, side):
        return bags_of(model, items, field, side)
    return represent(model, items, field)


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
    """The words in which a query and a document meet, with their shares of the score.

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
      UserError: as `represent`, there is no such mode, or it needs words of an image.
    """
    check_mode(model, (query_field, document_field), mode)
    sides = (
        in_mode(model, [query], query_field, mode, "query"),
        in_mode(model, [document], document_field, mode, "document"),
    )
    return listing.shared(*sides, words_of(model, query_field), count)


def usage(model: "TrainedModel", items: Iterable[Any], field: str) -> Usage:
    """How the model uses its vocabulary for some texts or images, which may be very many.

    Raises:
      UserError: as `represent`, or there is none.
    """
    return usage_of(represent(model, part, field) for part in _parts(items))


def lexical_fields(config: Config, kind: str = "") -> list[str]:
    """The fields with a lexical head, queries first.

    Args:
      config: of a model.
      kind: "image" or "text" of them only; "": all.
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


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    for item in items:
        part.append(item)
        if len(part) == AT_A_TIME:
            yield part
            part = []
    if part:
        yield part
