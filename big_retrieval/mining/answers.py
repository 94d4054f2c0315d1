"""Whether a passage contains an answer, as DPR's evaluation tells."""

import functools
import unicodedata
from collections.abc import Sequence

from tokenizers import Regex, pre_tokenizers

# Runs of letters, digits and marks, or one other character that can be seen.
WORDS = r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]"


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text: canonically decomposed (NFD), in lower case, split as `WORDS` says."""
    return tuple(word for word, _ in _splitter().pre_tokenize_str(_normal(text)))


def has_answer(text: str, answers: Sequence[tuple[str, ...]]) -> bool:
    """Whether the words of one of the answers stand in the text, one behind the other.

    Args:
      text: of a passage.
      answers: the words of each (`words_of`); one without words is in no text.
    """
    wanted = [answer for answer in answers if answer]
    if not wanted:
        return False
    words = words_of(text)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    return any(
        words[start : start + len(answer)] == answer
        for answer in wanted
        for start in places.get(answer[0], ())
    )


def _normal(text: str) -> str:
    return unicodedata.normalize("NFD", text).lower()


@functools.cache
def _splitter() -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)  # type: ignore[arg-type]
