"""English captions to words, as nltk's `word_tokenize` splits them in lower case.

That is the Penn Treebank's convention: punctuation stands alone ("dog", "."), a contraction is two
words ("is", "n't"; "dog", "'s"), quotes become `` and ''. A period stands alone where a sentence
ends. nltk learned from newspapers which words end with a period inside of a sentence; here these
are `ABBREVIATIONS`, numbers, and single letters.
"""

import re
from collections.abc import Sequence

ABBREVIATIONS = """
adm ave blvd capt co col corp dr e.g gen gov i.e inc jr lt ltd maj messrs mr mrs ms prof rep rev sen
sgt sr st vs a.m p.m u.k u.n u.s u.s.a jan feb aug sept oct nov dec
"""
_SHORT = frozenset(ABBREVIATIONS.split())
_JOINT = "\ue001"  # in front of every word of a text that was split before
_FINAL = "\ue000"  # stands for the period at the end of a sentence while other rules are applied
_CLOSING = "[\\])}>\"'\u00bb\u201d\u2019]*"  # what may follow this period
_PERIOD = re.compile(rf"(?<=[^\s.])\.(?=({_CLOSING})(?:\s|$))")
_LONGEST = 20  # characters in front of a period that are looked at
_SPLIT_IN_TWO = ("can|not", "d|'ye", "gim|me", "gon|na", "got|ta", "lem|me", "more|'n")


def _rules(*pairs: tuple[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), new) for pattern, new in pairs]


# Opening quotes are told from closing ones by what stands in front, so they come before all spaces
# that other rules put in.
_OPENING_QUOTES = _rules(
    ("[\u00ab\u201c\u2018\u201e]|`+", r" \g<0> "),
    (r'^"', "``"),
    ("``", " `` "),
    (r"([ (\[{<])(?:\"|'')", r"\1 `` "),
    (r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", "' "),  # in front of a word, as in 'hello'
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
    """The words of a text, in lower case; those that `join_words` put behind it are as they are."""
    plain, *words = text.split(_JOINT)
    return _split(plain.lower()) + words


def join_words(words: Sequence[str]) -> str:
    """A text that has exactly these words: to split them again would change closing quotes."""
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


def _period(found: re.Match[str]) -> str:
    """A period at the end of a word, which is marked where the sentence ends there."""
    text, place = found.string, found.start()
    word = text[max(0, place - _LONGEST) : place].split()[-1].lstrip("([{<\"'`")
    short = word in _SHORT or len(word) == 1 or word.isdigit()
    goes_on = found.end(1) < len(text)
    return "." if short and goes_on else _FINAL


def clean_words(text: str) -> str:
    """The words of a text with a space between them."""
    return " ".join(words_of(text))
