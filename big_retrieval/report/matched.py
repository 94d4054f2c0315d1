"""The words of a lexical model that matched, behind each a bar of its share of the score."""

import math
from typing import Any

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_number

MOST_LETTERS = 24  # of a word


def has_matched(value: Any) -> bool:
    """Whether anything of an evaluator's examples names words that matched."""
    if isinstance(value, dict):
        return bool(value.get("matched")) or any(has_matched(part) for part in value.values())
    return isinstance(value, list) and any(has_matched(part) for part in value)


def matched(value: Any) -> Html | None:
    """Words with bars; None where there are none, as of dense models.

    Args:
      value: lists of a word and its share of the score, from a file.
    """
    rows = [
        (str(row[0])[:MOST_LETTERS], float(row[1]))
        for row in (value if isinstance(value, list) else ())
        if isinstance(row, list) and len(row) == 2 and is_number(row[1]) and math.isfinite(row[1])
    ]
    if not rows:
        return None
    bars = (
        tag(
            "span",
            tag("bdi", word),
            tag("small", f"{100 * share:.0f}%"),
            class_="bar",
            style=f"--s: {100 * min(max(share, 0.0), 1.0):.1f}%",
        )
        for word, share in rows
    )
    return tag("span", bars, class_="matched", title="words that matched, share of the score")
