"""What search prints."""

from types import SimpleNamespace
from typing import Any

import pytest

from big_retrieval.retrieval.answers import answer
from big_retrieval.retrieval.searching import SearchResult


def test_ids_and_captions_cannot_control_the_terminal_or_add_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = SearchResult("a\x1b[31m\n  1  9.9", 0.5, "cap\x1b]0;x\x07tion \n b", (("w\x9b", 0.5),))
    searcher: Any = SimpleNamespace(show=lambda query, depth: [result])
    answer(searcher, "words", 1)
    assert capsys.readouterr().out == (
        "  1  0.5000    a\\x1b[31m\\n  1  9.9  cap\\x1b]0;x\\x07tion b\n     w\\x9b 0.5\n"
    )
