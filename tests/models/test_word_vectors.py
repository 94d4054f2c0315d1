"""Word vectors of a file: which words have them, and what is wrong with a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from big_retrieval.models.word_vectors import fit_words, ids_of_words, read_vectors
from big_retrieval.train.build import untrained
from tests.helpers import tiny

FILE = """5 4
red 1 2 3 4
blue -1 -2 -3 -4
. . . 9 9 9 9
zebra 5 6 7 8
red 0 0 0 0
"""


class Words:
    """A tokenizer of whole words."""

    special_ids = (0,)

    def __init__(self, *words: str) -> None:
        self.words = ("[PAD]", *words)
        self.vocab_size = len(self.words)

    def id_to_token(self, number: int) -> str:
        return self.words[number]


def test_a_run_starts_from_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(FILE)
    found = []
    for file in (str(tmp_path / "glove.txt"), ""):
        tower = recipe.entry(configs.Gru(), width=8, words=4, glove=file)
        more: dict[str, Any] = {"towers__text": tower, "towers__image__class_tokens": 1}
        model = untrained(tiny(**more), batch_size=8)
        found.append(np.asarray(model.weights["text"]["token_embedding"]))
        tokens = [model.tokenizer.id_to_token(i) for i in range(model.tokenizer.vocab_size)]
    given, drawn = found
    red, blue = tokens.index("red"), tokens.index("blue")
    np.testing.assert_array_equal(given[red], [1, 2, 3, 4])
    np.testing.assert_array_equal(given[blue], [-1, -2, -3, -4])
    others = np.setdiff1d(np.arange(len(drawn)), [red, blue])
    np.testing.assert_array_equal(given[others], drawn[others])
    assert 0.8 < drawn.std() < 1.2  # N(0, 1)


def test_a_word_that_the_file_lacks_takes_its_bare_spelling(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("tshirt 1 1\nred 2 2\nit's 3 3\nits 4 4\n")
    words = Words("t-shirt", "red/blue", "it's", "its", "r.e.d.", "-", "unknown", "[PAD]")
    table = np.zeros((words.vocab_size, 2), np.float32)
    fitted = fit_words(str(tmp_path / "glove.txt"), "table", table, words)
    found = fitted.params["table"][:, 0].tolist()
    assert found == [0, 1, 2, 3, 4, 2, 0, 0, 0]
    assert not table.any()  # what was drawn stays as it is
    assert fitted.notes[0].startswith("5 of 8 words start from ")


def test_pieces_of_words_start_at_random() -> None:
    words = wordpiece_tokenizer(learn_wordpiece(["red reding bluing"] * 3, 40))
    found = ids_of_words(words)
    assert "red" in found
    assert not [word for word in found if word.startswith(("#", "["))]


MISTAKES = [
    ("red 1 2 3\n", "line 1: 3 numbers, but the tower's key words is 4: set it to 3"),
    ("red 1 2 3 x\n", "line 1: not a word and 4 numbers"),
    ("zebra 1 2 3 4\n", "has none of the tokenizer's words"),
    (None, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("body", "words"), MISTAKES)
def test_mistakes_are_one_sentence(body: str | None, words: str, tmp_path: Path) -> None:
    if body is not None:
        (tmp_path / "glove.txt").write_text(body)
    with pytest.raises(UserError, match=words):
        read_vectors(str(tmp_path / "glove.txt"), {"red"}, 4)
