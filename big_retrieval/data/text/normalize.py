"""What makes two texts the same, and what a word is, wherever the package compares them."""

import functools
import re
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

# Letters and digits of all scripts with their marks, and joiners inside of words, as Persian and
# the scripts of India have them.
WORD = r"[\p{L}\p{N}](?:[\u200c\u200d]*[\p{L}\p{M}\p{N}])*"
_ASCII_WORD = re.compile("[a-z0-9]+")


def normalize_text(text: str, *, ignore_case: bool = False) -> str:
    """Returns what tokenizers read of a text; texts with equal results are the same text.

    It is composed (NFC), without control and format characters such as a byte order mark, without
    white space around it, and with one blank for each run of white space.

    Args:
      ignore_case: whether capitals make no difference, as where nothing may leak or be mined twice.
    """
    if not text.isascii() or not text.isprintable():
        text = unicodedata.normalize("NFC", text.translate(_invisible()))
    text = " ".join(text.split())
    return unicodedata.normalize("NFC", text.casefold()) if ignore_case else text


def find_words(text: str, pattern: str = WORD) -> list[str]:
    """The words of a text in lower case, composed (NFC).

    Args:
      pattern: of a word, in the syntax of the library tokenizers.
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
    """Control and format characters that are not white space, for `str.translate`."""
    every = map(chr, range(sys.maxunicode + 1))
    return {
        ord(x): None for x in every if not x.isspace() and unicodedata.category(x) in ("Cc", "Cf")
    }
