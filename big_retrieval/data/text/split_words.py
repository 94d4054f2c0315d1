"""English captions to words, as nltk's `word_tokenize` splits them in lower case.

This is the Penn Treebank's convention: punctuation is a separate word ("dog", "."), a contraction
is two words ("is", "n't"; "dog", "'s"), quotes become `` and ''. A period is a separate word at the
end of a sentence. Inside a sentence, it belongs to `ABBREVIATIONS`, numbers and single letters;
nltk learned these from newspapers.
"""

import re
from collections.abc import Sequence

ABBREVIATIONS = """
adm ave blvd capt co col corp dr e.g gen gov i.e inc jr lt ltd maj messrs mr mrs ms prof rep rev sen
sgt sr st vs a.m p.m u.k u.n u.s u.s.a jan feb aug sept oct nov dec
"""
_SHORT = frozenset(ABBREVIATIONS.split())
_JOINT = "\ue001"  # before every word that `join_words` wrote
_FINAL = "\ue000"  # replaces the period at the end of a sentence while other rules are applied
_CLOSING = "[\\])}>\"'\u00bb\u201d\u2019]*"  # characters that may follow this period
_PERIOD = re.compile(rf"(?<=[^\s.])\.(?=({_CLOSING})(?:\s|$))")
_LONGEST = 20  # characters before a period that are searched for the word
_SPLIT_IN_TWO = ("can|not", "d|'ye", "gim|me", "gon|na", "got|ta", "lem|me", "more|'n")


def _rules(*pairs: tuple[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), new) for pattern, new in pairs]


# The character before a quote distinguishes opening from closing quotes, so these rules come before
# the rules that insert spaces.
_OPENING_QUOTES = _rules(
    ("[\u00ab\u201c\u2018\u201e]|`+", r" \g<0> "),
    (r'^"', "``"),
    ("``", " `` "),
    (r"([ (\[{<])(?:\"|'')", r"\1 `` "),
    (r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", "' "),  # before a word, as in 'hello'
)
_PUNCTUATION = _rules(
    (r"([:,])([^\d])", r" \1 \2"),  # not in 10:30 or 1,000
    (r"([:,])$", r" \1 "),
    (r"\.{2,}", r" \g<0> "),
    ("[;@#$%&?!*\u2012-\u2015]", r" \g<0> "),
    (r"([^'])' ", r"\1 ' "),
    (r"[\]\[(){}<>]", r" \g<0> "),
    ("--", " -- "),
)
_WITH_SPACES_AROUND = _rules(
    ("[\u00bb\u201d\u2019]", r" \g<0> "),
    ("''", " '' "),
    ('"', " '' "),
    (r"\s+", " "),
    (r"([^' ])('[smd]|') ", r"\1 \2 "),
    (r"([^' ])('ll|'re|'ve|n't) ", r"\1 \2 "),
    *(
        (r"\b({})({})\b".format(*word.split("|")), r" \1 \2 ")  # "cannot", "gonna"
        for word in _SPLIT_IN_TWO
    ),
    (r"\b(wan)(na)(?=\s)", r" \1 \2 "),
    (r" ('t)(is)\b", r" \1 \2 "),
    (r" ('t)(was)\b", r" \1 \2 "),
)


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case; words from `join_words` stay unchanged."""
    plain, *words = text.split(_JOINT)
    return _split(plain.lower()) + words


def join_words(words: Sequence[str]) -> str:
    """Returns a text with exactly these words; splitting them again would change closing quotes."""
    return "".join(_JOINT + word for word in words)


def _split(text: str) -> list[str]:
    text = _PERIOD.sub(_period, text.rstrip())
    for pattern, new in _OPENING_QUOTES:
        text = pattern.sub(new, text)
    text = text.replace(_FINAL, " . ")
    for pattern, new in _PUNCTUATION:
        text = pattern.sub(new, text)
    text = f" {text} "
    for pattern, new in _WITH_SPACES_AROUND:
        text = pattern.sub(new, text)
    return text.split()


def _period(match: re.Match[str]) -> str:
    """Returns a period at the end of a word, or `_FINAL` at the end of a sentence."""
    text, index = match.string, match.start()
    word = text[max(0, index - _LONGEST) : index].split()[-1].lstrip("([{<\"'`")
    is_short = word in _SHORT or len(word) == 1 or word.isdigit()
    return "." if is_short and match.end(1) < len(text) else _FINAL


def clean_words(text: str) -> str:
    """Returns the words of a text, separated by spaces."""
    return " ".join(words_of(text))
