"""Whole words as tokens. The cases of splitting are results of nltk 3.9's word_tokenize."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Tokenizer, recipe
from big_retrieval.data.build import make_source, make_tokenizer
from big_retrieval.data.text.split_words import join_words, words_of
from big_retrieval.data.text.tokenizers import load_tokenizer, wordpiece_tokenizer
from big_retrieval.data.text.words import SPECIALS, learn_words, words_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.models.word_vectors import ids_of_words
from big_retrieval.sparse.terms import terms_of
from tests.helpers import raw_config, tiny

SPLIT = [
    ("A dog's ball isn't here.", "a dog 's ball is n't here ."),
    ("Two men, one in a T-shirt, at 10:30", "two men , one in a t-shirt , at 10:30"),
    ("in a car (at 9 a.m.)", "in a car ( at 9 a.m . )"),
    ("A dog runs. It jumps! Does it? Yes", "a dog runs . it jumps ! does it ? yes"),
    ("Mr. Smith and St. Paul in the U.S. today.", "mr. smith and st. paul in the u.s. today ."),
    ('He says "stop." Then "go"', "he says `` stop . '' then `` go ''"),
    ("'hello' she can't, you've, they'll, I'd", "' hello ' she ca n't , you 've , they 'll , i 'd"),
    ("cannot gonna wanna go", "can not gon na wan na go"),
    ("the dogs' bowls; a 5% cut: $3.50", "the dogs ' bowls ; a 5 % cut : $ 3.50"),
    ("#1 & more...", "# 1 & more ..."),
    ("\u201cgood\u201d -- well\u2014done", "\u201c good \u201d -- well \u2014 done"),
    ("[sic] a/b <start>", "[ sic ] a/b < start >"),
    ("rock 'n' roll o'clock  \n caf\u00e9", "rock 'n ' roll o'clock caf\u00e9"),
    ("no. 3. a dog", "no . 3. a dog"),
    ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), SPLIT)
def test_words_of_splits_like_nltk(text: str, words: str) -> None:
    assert " ".join(words_of(text)) == words
    assert words_of("It's" + join_words(words.split())) == ["it", "'s", *words.split()]


TEXTS = ["A dog and a cat.", "The dog's ball", "a cat"]


def test_words_of_takes_linear_time() -> None:
    """A rule that looks back from every character would take minutes here."""
    for text in ("a", "a. ", ".", "'", "(.)", '"'):
        assert words_of(text * 20_000)


VOCABULARY = [*SPECIALS, "a", "dog", "and", "cat", ".", "the", "'s", "ball"]


def test_learn_words_orders_by_first_occurrence() -> None:
    assert learn_words(TEXTS) == VOCABULARY
    assert learn_words(TEXTS, threshold=2) == [*SPECIALS, "a", "dog", "cat"]


@pytest.mark.parametrize("saved", [False, True])
def test_words_tokenizer_frames_and_cuts_texts(tmp_path: Path, saved: bool) -> None:
    words = words_tokenizer(VOCABULARY)
    if saved:
        path = tmp_path / "tokenizer.json"
        words.save(path)
        words = pickle.loads(pickle.dumps(load_tokenizer("words", str(path))))
        assert words.to_json() == words_tokenizer(VOCABULARY).to_json()
    ids, mask = words.encode(
        ["The dog's BIRD.", words.joined(["a", "<unk>"]), "a dog and a cat", ""], 6
    )
    np.testing.assert_array_equal(
        ids, [[1, 9, 5, 10, 3, 2], [1, 4, 3, 2, 0, 0], [1, 4, 5, 6, 4, 2], [1, 2, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(mask.sum(axis=1), [6, 4, 6, 2])
    assert (words.vocab_size, words.pad_id, words.special_ids) == (12, 0, {0, 1, 2, 3})
    assert words.unknown_token == "<unk>"
    assert words.words("The dog's") == ["the", "dog", "'s"]
    assert ids_of_words(words)["dog"] == [5]
    assert ids_of_words(words).keys() == set(VOCABULARY[4:])
    assert terms_of("words", words).ids == range(4, 12)
    titled, _ = words.encode(["a cat"], 6, ["the dog"])
    np.testing.assert_array_equal(titled, [[1, 9, 5, 4, 7, 2]])


def test_unknown_token_is_that_of_the_tokenizer() -> None:
    pieces = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    assert (pieces.unknown_token, pieces.words("It's a")) == ("[UNK]", ["It's", "a"])


def changed(**keys: Any) -> configs.Config:
    return configs.load(raw_config(tokenizer=recipe.entry(Tokenizer(), **keys)))


def test_make_tokenizer_learns_words_of_the_named_sources(tmp_path: Path) -> None:
    for name, text in (("train", "a dog"), ("test", "a cat")):
        (tmp_path / f"{name}.csv").write_text(f"captions\n{text}\n")
    test = configs.Retrieval(data=configs.Pairs(path=str(tmp_path / "test.csv"), image=""))
    keys: dict[str, Any] = {
        "data": recipe.entry(configs.Pairs(), path=str(tmp_path / "train.csv"), image=""),
        "evals": {"test": recipe.entry(test)},
    }
    config = tiny(**keys, tokenizer=recipe.entry(Tokenizer(), type="words"))
    of = make_source(config.data)
    assert make_tokenizer(config, of).vocab_size == 6
    both = recipe.entry(Tokenizer(), type="words", sources=("data", "evals.test"))
    config = tiny(**keys, tokenizer=both)
    words = make_tokenizer(config, of)
    assert [words.id_to_token(n) for n in (4, 5, 6)] == ["a", "dog", "cat"]
    assert not list(config.tokenizer.check(config))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"type": "clip"}, "only 'wordpiece' and 'words' can be learned"),
        ({"sources": ("data", "evals.x")}, "config.tokenizer.sources has 'evals.x'"),
        ({"sources": ()}, "config.tokenizer.sources is empty"),
    ],
)
def test_check_rejects_wrong_tokenizer_keys(keys: dict[str, Any], words: str) -> None:
    config = changed(**keys)
    assert any(words in message for message in config.tokenizer.check(config))


@pytest.mark.parametrize("name", ["", "vocab.txt", "missing"])
def test_load_rejects_other_files_of_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "vocab.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"is the tokenizer\.json of a run"):
        load_tokenizer("words", str(tmp_path / name))


def test_runlocal_keeps_whole_words() -> None:
    small = Tokenizer(type="words", sources=("data", "evals.test"), path="x").runlocal()
    assert small == Tokenizer(type="words", vocab_size=512)
    assert Tokenizer(type="clip", path="x").runlocal() == Tokenizer(vocab_size=512)
    words = make_tokenizer(changed(type="words"), make_source(tiny().data))
    assert words.unknown_token == "<unk>"
