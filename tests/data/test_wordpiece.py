"""The learned vocabulary: equal to a plain version, and equal in every process."""

import os
import random
import subprocess
import sys
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text import wordpiece
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import SPECIALS, learn_wordpiece


def plainly(texts, size):
    """Learns the vocabulary by counting all pairs again for every merge."""
    words = Counter(word for text in texts for word in text.split())
    spelt = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    letters = Counter()
    for word, count in words.items():
        for symbol in spelt[word]:
            letters[symbol] += count
    vocab = [*SPECIALS, *sorted(letters, key=lambda s: (-letters[s], s))][:size]
    usable = {word for word in words if set(spelt[word]) <= set(vocab)}
    while len(vocab) < size:
        pairs = Counter()
        for word in usable:
            for pair in zip(spelt[word], spelt[word][1:], strict=False):
                pairs[pair] += words[word]
        if not pairs:
            break
        (left, right), count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if count < 2:
            break
        piece = left + right[2:]
        vocab += [piece] if piece not in vocab else []
        for word in usable:
            old, new = spelt[word], []
            while old:
                step = 2 if old[:2] == [left, right] else 1
                new.append(piece if step == 2 else old[0])
                old = old[step:]
            spelt[word] = new
    return vocab


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.text("aabc", min_size=1, max_size=9), max_size=6).map(" ".join)),
    size=st.integers(5, 60),
)
def test_learn_wordpiece_equals_the_plain_version(texts, size):
    assert learn_wordpiece(texts, size) == plainly(texts, size)


def test_order_of_a_small_vocabulary():
    found = learn_wordpiece(["low low low lower", "lowest"], 100)
    letters = ["##o", "##w", "l", "##e", "##r", "##s", "##t"]
    assert found == [*SPECIALS, *letters, "##ow", "low", "lowe"]


def test_size_is_an_upper_bound_and_rare_letters_go_first():
    texts = ["aa aa ab z"]
    for size in range(5, 14):
        found = learn_wordpiece(texts, size)
        assert len(found) <= size
        assert len(set(found)) == len(found)
    assert learn_wordpiece(texts, 6)[5:] == ["a"]


def test_order_and_blocks_of_texts_change_nothing(monkeypatch):
    captions = SceneRecords("train", count=100).captions()
    texts = [*captions, "Caf\u00e9 12 34\t12", "a \u0301b", "\u65e5\u672c"]
    expected = learn_wordpiece(iter(texts), 300)
    random.Random(0).shuffle(texts)
    assert learn_wordpiece(texts, 300) == expected
    monkeypatch.setattr(wordpiece, "_BLOCK", 1)
    assert learn_wordpiece(texts, 300) == expected


def test_vocabulary_does_not_depend_on_the_hash_seed():
    program = (
        "import hashlib; from big_retrieval.data.synthetic.scenes import SceneRecords;"
        "from big_retrieval.data.text.wordpiece import learn_wordpiece;"
        "v = learn_wordpiece(SceneRecords('train', count=200).captions(), 120);"
        "import sys; assert 'jax' not in sys.modules;"
        "print(len(v), hashlib.sha256(repr(v).encode()).hexdigest())"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1")
    )  # fmt: skip
    assert first == second
    assert first.startswith("120 ")


def test_scenes_are_written_in_whole_words():
    vocab = learn_wordpiece(SceneRecords("train", count=1000).captions(), 512)
    tokenizer = wordpiece_tokenizer(vocab)
    test = SceneRecords("test", count=50)
    ids, mask = tokenizer.encode(list(test.captions()), 20)
    assert not (ids == 1).any()  # [UNK]
    words = [len(text.split()) + 2 for text in test.captions()]
    assert mask.sum(1).tolist() == words


def test_case_accents_and_broken_text():
    assert "café" not in learn_wordpiece(["Café café"] * 3, 50)
    assert "cafe" in learn_wordpiece(["Café café"] * 3, 50)
    assert "Café" in learn_wordpiece(["Café Café"] * 3, 50, lowercase=False)
    assert learn_wordpiece(["a \ud83d"] * 2, 50) == learn_wordpiece(["a ?"] * 2, 50)
    assert learn_wordpiece(["x" * 101], 50) == list(SPECIALS)
