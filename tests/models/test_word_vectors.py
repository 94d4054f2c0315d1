"""Initial word vectors from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.models.word_vectors import fit_words, ids_of_words, read_vectors
from big_retrieval.train.build import untrained
from tests.helpers import tiny, user_error

FILE = """5 4
red 1 2 3 4
blue -1 -2 -3 -4
. . . 9 9 9 9
zebra 5 6 7 8
red 0 0 0 0
"""


class Words:
    special_ids = (0,)

    def __init__(self, *words: str) -> None:
        self.words = ("[PAD]", *words)
        self.vocab_size = len(self.words)

    def id_to_token(self, token_id: int) -> str:
        return self.words[token_id]


def test_run_starts_from_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(FILE)
    tables = []
    for file in (str(tmp_path / "glove.txt"), ""):
        tower = recipe.entry(configs.Gru(), width=8, words=4, glove=file)
        more: dict[str, Any] = {"towers__text": tower, "towers__image__class_tokens": 1}
        model = untrained(tiny(**more), batch_size=8)
        tables.append(np.asarray(model.weights["text"]["token_embedding"]))
        tokens = [model.tokenizer.id_to_token(i) for i in range(model.tokenizer.vocab_size)]
    table, random = tables
    expected = random.copy()
    expected[tokens.index("red")], expected[tokens.index("blue")] = [1, 2, 3, 4], [-1, -2, -3, -4]
    np.testing.assert_array_equal(table, expected)
    assert 0.8 < random.std() < 1.2  # N(0, 1)


def test_fit_words_falls_back_to_bare_spelling(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("tshirt 1 1\nred 2 2\nit's 3 3\nits 4 4\n")
    words = Words("t-shirt", "red/blue", "it's", "its", "r.e.d.", "-", "unknown", "[PAD]")
    table = np.zeros((words.vocab_size, 2), np.float32)
    fitted = fit_words(str(tmp_path / "glove.txt"), "table", table, words)
    assert fitted.params["table"][:, 0].tolist() == [0, 1, 2, 3, 4, 2, 0, 0, 0]
    assert not table.any()  # the random table is not changed
    assert fitted.notes[0].startswith("5 of 8 words start from ")


def test_ids_of_words_leaves_out_pieces() -> None:
    words = ids_of_words(wordpiece_tokenizer(learn_wordpiece(["red reding bluing"] * 3, 40)))
    assert "red" in words
    assert not [word for word in words if word.startswith(("#", "["))]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("red 1 2 3\n", "line 1: 3 numbers"),
        ("red 1 2 3 x\n", "line 1: not a word and 4 numbers"),
        ("zebra 1 2 3 4\n", "none of the tokenizer's words"),
        (None, "cannot be read: No such file"),
    ],
)
def test_read_vectors_rejects_files(body: str | None, message: str, tmp_path: Path) -> None:
    if body is not None:
        (tmp_path / "glove.txt").write_text(body)
    with user_error(message):
        read_vectors(str(tmp_path / "glove.txt"), {"red"}, 4)
