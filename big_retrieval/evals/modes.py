"""Further ways to rank that a config names: other weights of fields, and modes of lexical models.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.3 (nonparametric retrieval) and Tables 6 and 7 (terms that the gate leaves). A mode is written

| mode | queries | documents |
| --- | --- | --- |
| `bag` | bags of their words, no network | as encoded |
| `binary` | as encoded | bags of their words |
| `top_k=64` | 64 terms and their own words | the same |
| `top_k=64/all` | 64 terms and their own words | as encoded |

With 0 only a text's own words stay, with the weights that they have. A gate can only be narrowed:
what the head's own `top_k` left out is lost. Nothing is encoded twice.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from big_retrieval.config import Config, Evaluator, Field, is_lexical, lexical_head
from big_retrieval.errors import UserError

Side = Literal["query", "document"]
SIDES: tuple[Side, Side] = ("query", "document")
_TOP_K = re.compile(r"top_k=(\d+|all)(?:/(\d+|all))?")


@dataclass(frozen=True)
class Mode:
    """A way to search with a lexical model.

    Attributes:
      name: as written.
      bags: the side whose texts are bags of words, if any.
      top_k: side -> terms that stay; None: all.
    """

    name: str
    bags: Side | None
    top_k: Mapping[Side, int | None]

    def needs_words(self, side: Side) -> bool:
        """Whether the mode asks for the bags of words of a side."""
        return self.bags == side or self.top_k[side] is not None


def own_top_k(fields: Mapping[str, Field], chosen: Sequence[str]) -> int | None:
    """The terms that the widest gate of some lexical fields leaves; None: all.

    Args:
      fields: all fields of the model.
      chosen: names of those that count, a side of an evaluator.
    """
    heads = [lexical_head(fields, name) for name in chosen]
    tops = [head.top_k for head in heads if head is not None and head.top_k is not None]
    return max(tops, default=None) if len(tops) == len(heads) else None


def misfit(mode: Mode, side: Side, fields: Mapping[str, Field], chosen: Sequence[str]) -> str:
    """Why a model cannot search in a mode; "" where it can.

    Args:
      mode: the mode.
      side: the one that is looked at.
      fields: all fields of the model.
      chosen: names of those of the side.
    """
    if mode.bags == side and any(fields[name].modality == "image" for name in chosen):
        return f"the {side} side has images, not words"
    own, wanted = own_top_k(fields, chosen), mode.top_k[side]
    if own is None or wanted is None or wanted <= own:
        return ""
    return (
        f"the model's own gate leaves {own} terms of the {side} side, which can only be narrowed: "
        f"take {own} at most, or 'all'"
    )


def check_modes(part: Evaluator, config: Config, path: str) -> Iterator[str]:
    """Yields a sentence for each mode of an evaluator in which the model cannot search."""
    compared = part.compared(config)
    sides = {side: [x for x in compared[side] if x in config.encoded] for side in SIDES}
    if part.modes and not is_lexical(config, *sides["query"], *sides["document"]):
        yield f"{path}.modes are for lexical models, which this is not; leave them out."
        return
    for text in part.modes:
        try:
            mode = parse_mode(text, f"{path}.modes")
        except UserError as problem:
            yield str(problem)
            continue
        wrong = (misfit(mode, side, config.fields, sides[side]) for side in SIDES)
        yield from (f"{path}.modes has {mode.name!r}, but {why}." for why in wrong if why)


def parse_mode(text: str, path: str) -> Mode:
    """A mode as it is written.

    Args:
      text: as above.
      path: of the key, for messages.

    Raises:
      UserError: it is something else.
    """
    whole: dict[Side, int | None] = {"query": None, "document": None}
    if text in ("bag", "binary"):
        return Mode(text, "query" if text == "bag" else "document", whole)
    match = _TOP_K.fullmatch(text)
    if match is None:
        raise UserError(
            f"{path} has {text!r}; known: 'bag', 'binary', 'top_k=64', or 'top_k=64/128' for "
            "queries and documents."
        )
    first, second = match[1], match[2] or match[1]
    tops = [None if each == "all" else int(each) for each in (first, second)]
    return Mode(text, None, {"query": tops[0], "document": tops[1]})


def parse_weighting(text: str, fields: Collection[str], path: str) -> dict[str, float]:
    """Weights of the documents' fields: "image" is image alone, "image=0.9,title=0.1" both.

    Args:
      text: as written.
      fields: the names that there are.
      path: of the key, for messages.

    Returns:
      Field name -> weight, one of them above 0.

    Raises:
      UserError: an unknown field, a weight that is no number or negative, or all 0.
    """
    out: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if name not in fields or name in out:
            known = ", ".join(sorted(fields))
            twice = "is there twice" if name in out else "is no field of the documents' side"
            raise UserError(f"{path} has {text!r}: {name!r} {twice} (there are: {known}).")
        try:
            out[name] = float(number) if equals else 1.0
        except ValueError:
            out[name] = -1.0
        if not 0 <= out[name] < float("inf"):
            raise UserError(
                f"{path} has {text!r}: the weight {number!r} must be a number from 0 on, as in "
                "'image=0.9,title=0.1'."
            )
    if not sum(out.values()):
        raise UserError(f"{path} has {text!r}, in which all weights are 0.")
    return out
