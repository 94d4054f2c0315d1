"""Normalized texts and words."""

import unicodedata

import pytest

from big_retrieval.data.text.normalize import find_words, normalize_text

SAME = "Caf\u00e9 in Paris"
COPIES = [
    " Caf\u00e9 in  Paris\n", "Cafe\u0301 in Paris", "\ufeffCaf\u00e9 in Paris",
    "Caf\u00e9\u00a0in\u3000Paris", "Caf\u00e9 in\r\n\tParis\u200b", "Caf\u00e9 in Par\u00adis\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", COPIES)
def test_normalize_text_gives_copies_one_form(text: str) -> None:
    assert normalize_text(text) == SAME
    assert find_words(text.replace("\u00ad", "").replace("\x00", "")) == [
        "caf\u00e9",
        "in",
        "paris",
    ]


def test_normalize_text_ignores_case_on_request() -> None:
    assert normalize_text("Red SHOE") != normalize_text("red shoe")
    for one, other in (("  Red\tSHOE \n", "red shoe"), ("STRASSE", "stra\u00dfe")):
        keys = {normalize_text(text, ignore_case=True) for text in (one, other)}
        assert len(keys) == 1
    assert normalize_text("red shoe") != normalize_text("red shoes")


@pytest.mark.parametrize(
    "word",
    ["\u092a\u093e\u0928\u0940", "\u0b95\u0b9f\u0bb2\u0bc8", "\u0e19\u0e49\u0e33",
     "\u0c28\u0c40\u0c30\u0c41", "\u0643\u064e\u062a\u064e\u0628\u064e",
     "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "caf\u00e9s"],
)  # fmt: skip
def test_find_words_keeps_marks(word: str) -> None:
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, f"a-{word}, {word.upper()}!")
        expected = unicodedata.normalize("NFC", word)
        assert find_words(text) == ["a", expected, expected]


def test_find_words_skips_symbols() -> None:
    assert find_words("a_b \u2764\ufe0f\u200d\U0001f525 ... x\u200c 5%") == ["a", "b", "x", "5"]
