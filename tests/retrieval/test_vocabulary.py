"""Bags of words."""

from pathlib import Path

import numpy as np

from big_retrieval.data.text.tokenizers import FixedLengthTokenizer, wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.sparse.terms import Terms, terms_of

TOKENIZER = wordpiece_tokenizer(learn_wordpiece(["red circle blue star"] * 9, 200))


def ids_of(*words: str) -> list[int]:
    names = {TOKENIZER.id_to_token(i): i for i in range(TOKENIZER.vocab_size)}
    return [names[word] for word in words]


def vocabulary(*words: str) -> BagOfWordsEncoder:
    return BagOfWordsEncoder(Terms(tuple(ids_of(*words)), TOKENIZER.vocab_size), TOKENIZER)


def test_bag_has_every_word_once() -> None:
    encoder = BagOfWordsEncoder(terms_of("all", TOKENIZER), TOKENIZER)
    bag = encoder.bag(["Red red, circle 漢 [SEP] [MASK]", "", "blue"], 12)
    assert bag.shape == (3, TOKENIZER.vocab_size)
    dense = bag.toarray()
    assert sorted(np.flatnonzero(dense[0])) == sorted(ids_of("red", "circle"))
    assert not dense[1].any()  # neither start nor end
    assert sorted(np.flatnonzero(dense[2])) == ids_of("blue")
    assert set(bag.data) == {1.0}
    assert encoder.bag(["red circle blue"], 4).nnz == 2  # cut to start, two words, end
    titled = encoder.bag([("circle", "red"), ("blue", "")], 9).toarray()
    assert sorted(np.flatnonzero(titled[0])) == sorted(ids_of("red", "circle"))
    assert sorted(np.flatnonzero(titled[1])) == ids_of("blue")


def test_bag_has_columns_of_some_tokens(tmp_path: Path) -> None:
    words = vocabulary("star", "red")
    assert words.words == ["star", "red"]
    bag = words.bag(["red circle", "star red", "circle"], 9).toarray()
    np.testing.assert_array_equal(bag, [[0, 1], [1, 1], [0, 0]])
    words.save(tmp_path)
    again = BagOfWordsEncoder.load(tmp_path)
    assert again.words == words.words
    assert again.fingerprint() == words.fingerprint()
    assert vocabulary("red", "star").fingerprint() != words.fingerprint()
    other = FixedLengthTokenizer.from_json(TOKENIZER.to_json().replace('"circle"', '"cube"'))
    assert BagOfWordsEncoder(words.terms, other).fingerprint() != words.fingerprint()
    size = TOKENIZER.vocab_size + 2
    beyond = BagOfWordsEncoder(Terms(range(size), size), TOKENIZER)
    assert beyond.words[-1] == f"[id {size - 1}]"
