"""The settings of a sweep: how many columns of a query and of a document take part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from big_retrieval.config import Field
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import Mode, Side, own_top_k, parse_mode

WIDTHS = (4, 16, 64, 256)  # columns of the default gates, as far as the model's own is wider
KEPT: Mapping[Side, int] = {"query": 3, "document": 2}  # how many of them, the widest ones
WORDS: Mapping[Side, str] = {"query": "bag", "document": "binary"}  # bags of words, no network
BM25 = "bm25"  # weights of words that no model gave
Fields = Mapping[str, Field]


@dataclass(frozen=True)
class Gate:
    """What of a side's representations takes part in a search.

    Attributes:
      name: as written: "bag" of queries and "binary" of documents are bags of words, a number the
        columns that stay besides a text's own words, "all" what the model gave.
      side: that it applies to.
      mode: the same as a way to search, which leaves the other side as it is.
    """

    name: str
    side: Side
    mode: Mode

    @property
    def words(self) -> bool:
        """Whether it takes bags of words, which no network encodes."""
        return self.mode.bags == self.side


def parse_gate(name: str, side: Side) -> Gate:
    """A gate as it is written.

    Raises:
      UserError: it is something else.
    """
    if name == WORDS[side]:
        return Gate(name, side, parse_mode(name, ""))
    if name != "all" and not (name.isdecimal() and name.isascii()):
        flag = _flag(side)
        raise UserError(
            f"{flag} has {name!r}; it takes '{WORDS[side]}' (bags of words), numbers of columns "
            f"and 'all', as in {flag}={WORDS[side]},16,64,all."
        )
    tops = f"{name}/all" if side == "query" else f"all/{name}"
    return Gate(name, side, parse_mode(f"top_k={tops}", ""))


def gates_of(names: Sequence[str], side: Side, fields: Fields, chosen: Sequence[str]) -> list[Gate]:
    """The gates of a side that a sweep goes through.

    Args:
      names: as the flag has them; none: the default ones that narrow this model's own gate.
      side: "query" or "document".
      fields: all of the model.
      chosen: names of those of the side, which have lexical heads.

    Raises:
      UserError: an unknown or a repeated one, bags of words of images, or more columns than the
        model's own gate leaves.
    """
    texts = all(fields[name].modality == "text" for name in chosen)
    top_k = own_top_k(fields, chosen)
    if not names:
        narrower = [str(width) for width in WIDTHS if top_k is None or width < top_k]
        names = [*([WORDS[side]] if texts else []), *narrower[-KEPT[side] :], "all"]
    gates, flag = [parse_gate(name, side) for name in names], _flag(side)
    for number, gate in enumerate(gates):
        if gate.name in names[:number]:
            raise UserError(f"{flag} has {gate.name!r} twice; keep one.")
        if gate.words and not texts:
            raise UserError(f"{flag} has {gate.name!r}, but the {side} side has images; leave it.")
        wanted = gate.mode.top_k[side]
        if top_k is not None and wanted is not None and wanted > top_k:
            raise UserError(
                f"{flag} has {wanted}, but the model's own gate leaves {top_k} columns, which can "
                "only be narrowed: leave it out, or say 'all'."
            )
    return gates


def _flag(side: Side) -> str:
    return "--queries" if side == "query" else "--documents"
