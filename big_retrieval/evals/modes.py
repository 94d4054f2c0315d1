"""Further ways to search with lexical models: without a network, or through another gate.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from big_retrieval.config import Field, lexical_head
from big_retrieval.errors import UserError

Side = Literal["query", "document"]
_TOP = re.compile(r"top_k=(\d+|all)(?:/(\d+|all))?")


@dataclass(frozen=True)
class Mode:
    """A way to search.

    Attributes:
      name: as written.
      bags: the side whose texts are bags of words, if any.
      top_k: side -> terms that stay; None: all.
    """

    name: str
    bags: Side | None
    top_k: Mapping[Side, int | None]

    def needs_words(self, side: Side) -> bool:
        """Whether the bags of words of a side are asked for."""
        return self.bags == side or self.top_k[side] is not None


def own_top_k(fields: Mapping[str, Field], chosen: Sequence[str]) -> int | None:
    """The terms that the widest gate of some lexical fields leaves; None: all.

    Args:
      fields: all of the model.
      chosen: names of those that count, a side of an evaluator.
    """
    heads = [lexical_head(fields, name) for name in chosen]
    tops = [head.top_k for head in heads if head is not None and head.top_k is not None]
    return max(tops, default=None) if len(tops) == len(heads) else None


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
    match = _TOP.fullmatch(text)
    if match is None:
        raise UserError(
            f"{path} has {text!r}; known: 'bag', 'binary', 'top_k=64', or 'top_k=64/128' for "
            "queries and documents."
        )
    first, second = match[1], match[2] or match[1]
    tops = [None if each == "all" else int(each) for each in (first, second)]
    return Mode(text, None, {"query": tops[0], "document": tops[1]})
