"""Bags of words, and lexical documents for other tools."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.data.text.tokenizers import FixedLengthTokenizer, wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from big_retrieval.retrieval.exports import write_csr, write_lucene
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.sparse.terms import Terms, terms_of
from tests.retrieval.index_cases import cut, random_rows

TOKENIZER = wordpiece_tokenizer(learn_wordpiece(["red circle blue star"] * 9, 200))


def ids_of(*words: str) -> list[int]:
    names = {TOKENIZER.id_to_token(i): i for i in range(TOKENIZER.vocab_size)}
    return [names[word] for word in words]


def vocabulary(*words: str) -> BagOfWordsEncoder:
    return BagOfWordsEncoder(Terms(tuple(ids_of(*words)), TOKENIZER.vocab_size), TOKENIZER)


def test_a_bag_holds_every_word_once() -> None:
    every = BagOfWordsEncoder(terms_of("all", TOKENIZER), TOKENIZER)
    bag = every.bag(["Red red, circle 漢 [SEP] [MASK]", "", "blue"], 12)
    assert bag.shape == (3, TOKENIZER.vocab_size)
    dense = bag.toarray()
    assert sorted(np.flatnonzero(dense[0])) == sorted(ids_of("red", "circle"))
    assert not dense[1].any()  # neither start nor end
    assert sorted(np.flatnonzero(dense[2])) == ids_of("blue")
    assert set(bag.data) == {1.0}
    assert every.bag(["red circle blue"], 4).nnz == 2  # cut to start, two words, end
    titled = every.bag([("circle", "red"), ("blue", "")], 9).toarray()
    assert sorted(np.flatnonzero(titled[0])) == sorted(ids_of("red", "circle"))
    assert sorted(np.flatnonzero(titled[1])) == ids_of("blue")


def test_columns_are_some_of_the_tokens(tmp_path: Path) -> None:
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


def test_lucene(tmp_path: Path) -> None:
    rows = sparse.csr_array(np.float32([[0, 1.5, 0.004], [0, 0, 0], [2, 0, 0.126]]))
    names = ["a", "b", 'c"']
    batches = [(names[:2], rows[:2]), (names[2:], rows[2:])]
    assert write_lucene(tmp_path, batches, ["x", "##y", "漢"], 100) == 3
    lines = (tmp_path / "documents.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"id": "a", "contents": "", "vector": {"##y": 150}}
    assert [json.loads(line)["vector"] for line in lines[1:]] == [{}, {"x": 200, "漢": 13}]
    assert json.loads(lines[2])["id"] == 'c"'
    write_lucene(tmp_path, batches, ["x", "##y", "漢"], None)
    first = json.loads((tmp_path / "documents.jsonl").read_text().splitlines()[0])
    np.testing.assert_array_equal(np.float32(list(first["vector"].values())), rows.data[:2])


def test_csr(tmp_path: Path) -> None:
    rows, words = random_rows(50, 12, 0.3, 0), [f"w{i}" for i in range(12)]
    names = iter(f"d{i}" for i in range(50))
    batches = (([next(names) for _ in range(part.shape[0])], part) for part in cut(rows, 7))
    assert write_csr(tmp_path, batches, words) == 50
    found = sparse.load_npz(tmp_path / "documents.npz")
    assert found.shape == rows.shape
    assert (found != rows).nnz == 0
    assert found.dtype == np.float32
    assert (tmp_path / "ids.txt").read_text().split() == [f"d{i}" for i in range(50)]
    assert (tmp_path / "words.txt").read_text().split() == words
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(UserError, match="has a line break"):
        write_csr(tmp_path, [(["a\nb"], rows[:1])], words)
