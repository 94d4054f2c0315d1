"""Normalized texts and words, for every comparison of texts."""

import functools
import re
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

# Letters and digits of all scripts with their marks, and joiners inside words (Persian, Hindi).
WORD = r"[\p{L}\p{N}](?:[\u200c\u200d]*[\p{L}\p{M}\p{N}])*"
_ASCII_WORD = re.compile("[a-z0-9]+")


def normalize_text(text: str, *, ignore_case: bool = False) -> str:
    """Returns a text as tokenizers read it; equal results count as the same text.

    The result is composed (NFC), without control and format characters, and with single spaces as
    the only white space.

    Args:
      ignore_case: True for equal results of "A" and "a".
    """
    if not text.isascii() or not text.isprintable():
        text = unicodedata.normalize("NFC", text.translate(_invisible()))
    text = " ".join(text.split())
    return unicodedata.normalize("NFC", text.casefold()) if ignore_case else text


def find_words(text: str, pattern: str = WORD) -> list[str]:
    """Returns the words of a text in lower case, composed (NFC).

    Args:
      pattern: pattern of a word, in the syntax of the library tokenizers.
    """
    if pattern == WORD and text.isascii():
        return _ASCII_WORD.findall(text.lower())
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).lower())
    return [word for word, _ in _splitter(pattern).pre_tokenize_str(text)]


@functools.lru_cache(maxsize=8)
def _splitter(pattern: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)  # type: ignore[arg-type]


@functools.cache
def _invisible() -> dict[int, None]:
    """Returns control and format characters except white space, for `str.translate`."""
    every = map(chr, range(sys.maxunicode + 1))
    return {
        ord(x): None for x in every if not x.isspace() and unicodedata.category(x) in ("Cc", "Cf")
    }
