"""Further rankings that a config can list: other field weights, and modes of lexical models.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.3 (nonparametric retrieval) and Tables 6 and 7 (terms after the gate). The modes are

| mode | queries | documents |
| --- | --- | --- |
| `bag` | bags of words, without the model | as encoded |
| `binary` | as encoded | bags of words |
| `top_k=64` | 64 terms and the words of the text | the same |
| `top_k=64/all` | 64 terms and the words of the text | as encoded |

0 keeps only the words of the text, with their weights. A mode can only narrow the head's gate: the
terms outside the head's `top_k` are lost. Nothing is encoded twice.
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
    """Search mode of a lexical model.

    Attributes:
      name: text in the config.
      bags: side whose texts are bags of words, if any.
      top_k: number of terms to keep by side; None for all.
    """

    name: str
    bags: Side | None
    top_k: Mapping[Side, int | None]

    def needs_words(self, side: Side) -> bool:
        """Returns True if the mode needs the bags of words of a side."""
        return self.bags == side or self.top_k[side] is not None


def own_top_k(fields: Mapping[str, Field], chosen: Sequence[str]) -> int | None:
    """Returns the largest `top_k` of the lexical fields `chosen`; None for all terms."""
    heads = [lexical_head(fields, name) for name in chosen]
    tops = [head.top_k for head in heads if head is not None and head.top_k is not None]
    return max(tops, default=None) if len(tops) == len(heads) else None


def misfit(mode: Mode, side: Side, fields: Mapping[str, Field], chosen: Sequence[str]) -> str:
    """Returns the reason why a model cannot search in a mode; "" if it can.

    Args:
      fields: all fields of the model.
      chosen: names of the fields of the side.
    """
    if mode.bags == side and any(fields[name].modality == "image" for name in chosen):
        return f"the {side} side has images, not words"
    model_top_k, top_k = own_top_k(fields, chosen), mode.top_k[side]
    if model_top_k is None or top_k is None or top_k <= model_top_k:
        return ""
    return (
        f"the model's own gate leaves {model_top_k} terms of the {side} side, which can only be "
        f"narrowed: take {model_top_k} at most, or 'all'"
    )


def check_modes(part: Evaluator, config: Config, path: str) -> Iterator[str]:
    """Yields an error message for each mode of an evaluator in which the model cannot search."""
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
        reasons = (misfit(mode, side, config.fields, sides[side]) for side in SIDES)
        yield from (
            f"{path}.modes has {mode.name!r}, but {reason}." for reason in reasons if reason
        )


def parse_mode(text: str, path: str) -> Mode:
    """Parses a mode; `path` is the config key, for messages.

    Raises:
      UserError: the mode is unknown.
    """
    if text in ("bag", "binary"):
        return Mode(text, "query" if text == "bag" else "document", dict.fromkeys(SIDES))
    match = _TOP_K.fullmatch(text)
    if match is None:
        raise UserError(
            f"{path} has {text!r}; known: 'bag', 'binary', 'top_k=64', or 'top_k=64/128' for "
            "queries and documents."
        )
    first, second = (None if x == "all" else int(x) for x in (match[1], match[2] or match[1]))
    return Mode(text, None, {"query": first, "document": second})


def parse_weighting(text: str, fields: Collection[str], path: str) -> dict[str, float]:
    """Parses weights of document fields, such as "image" or "image=0.9,title=0.1".

    Args:
      fields: names of the document fields.
      path: the config key, for messages.

    Returns:
      Weight by field name; at least one is above 0.

    Raises:
      UserError: a field is unknown, a weight is negative or not a number, or all weights are 0.
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
