"""Tokenizers: BERT's and CLIP's rules, fixed lengths, files."""

import gzip
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.text import tokenizers as text_module
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.tokenizers import clip_tokenizer, load_tokenizer, wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io import hub

VOCAB = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cafe", "cat", "##s", "un", "##aff",
    "##able", "!", "[", "]", "sep", "中", "文", "😀", "'", "don", "t", "Cat", "Café",
]  # fmt: skip

TOKENIZER = wordpiece_tokenizer(VOCAB)


def words(tokenizer, text, length=16):
    ids, mask = tokenizer.encode([text], length)
    return " ".join(tokenizer.id_to_token(int(number)) for number in ids[0][mask[0]])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Cats", "cat ##s"),
        ("CAFÉ cafe\u0301!", "cafe cafe !"),
        ("unaffable unaffables", "un ##aff ##able un ##aff ##able ##s"),
        ("unaffle", "[UNK]"),
        ("a中文a", "a 中 文 a"),
        ("a😀", "[UNK]"),
        ("😀 a", "😀 a"),
        ("don't", "don ' t"),
        ("a\x00\u200bcat\ta\n cat\u00a0a\ufffd", "[UNK] a cat a"),
        ("", ""),
        ("a" * 100, "[UNK]"),
        ("cat" + "s" * 97, "cat" + " ##s" * 13),  # cut to the length
        ("cat" + "s" * 98, "[UNK]"),  # a word of more than 100 characters
        ("\ud83d a", "[UNK] a"),
        ("a [MASK] cat", "a [MASK] cat"),
        ("[SEP]\t[PAD] [UNK]\n[CLS]", "[SEP] [PAD] [UNK] [CLS]"),
        ("a[SEP] a", "a [ sep ] a"),
        ("[sep] [SEP]!", "[ sep ] [ sep ] !"),
    ],
)
def test_wordpiece_follows_the_rules_of_bert(text, found):
    assert words(TOKENIZER, text) == f"[CLS] {found} [SEP]".replace("  ", " ")


def test_wordpiece_keeps_the_case():
    assert words(wordpiece_tokenizer(VOCAB, lowercase=False), "Cat Café cat") == (
        "[CLS] Cat Café cat [SEP]"
    )


def test_encode_pads_and_cuts():
    tokenizer = TOKENIZER
    ids, mask = tokenizer.encode(["a cat", "a a a a a a"], 5)
    assert ids.dtype == np.int32
    assert mask.dtype == bool
    assert ids.tolist() == [[2, 5, 7, 3, 0], [2, 5, 5, 5, 3]]
    assert mask.tolist() == [[True] * 4 + [False], [True] * 5]
    assert tokenizer.encode(["a cat"], 2)[0].tolist() == [[2, 3]]
    assert tokenizer.encode([], 5)[0].shape == (0, 5)
    with pytest.raises(UserError, match="length 1 is too short"):
        tokenizer.encode(["a"], 1)
    other = wordpiece_tokenizer(["[UNK]", "[CLS]", "[SEP]", "a", "[PAD]"])
    assert other.pad_id == 4
    assert other.encode(["a"], 5)[0].tolist() == [[1, 3, 2, 4, 4]]


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text(max_size=30) | st.sampled_from(["a [MASK] cat", "cats"]), max_size=4),
    length=st.integers(2, 12),
)
def test_rows_do_not_depend_on_each_other_and_are_framed(texts, length):
    tokenizer = TOKENIZER
    ids, mask = tokenizer.encode(texts, length)
    for text, row, present in zip(texts, ids, mask, strict=True):
        one, _ = tokenizer.encode([text], length)
        np.testing.assert_array_equal(one[0], row)
        count = int(present.sum())
        assert present[:count].all()
        assert row[0] == 2
        assert row[count - 1] == 3
        assert (row[count:] == tokenizer.pad_id).all()
        assert row.max() < tokenizer.vocab_size


def test_threads_share_a_tokenizer():
    tokenizer = TOKENIZER
    texts = ["cats", "a [SEP] cat", "café!", "a " * 20]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: tokenizer.encode(texts, 4 + i % 3)[0], range(60)))
    for i, ids in enumerate(found):
        np.testing.assert_array_equal(ids, tokenizer.encode(texts, 4 + i % 3)[0])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Returns CLIP's tokenizer with an invented merges file."""
    return clip_tokenizer(clip_file(tmp_path_factory.mktemp("clip")))


def clip_file(folder, merges=48894):
    """Writes a merges file of CLIP's size: some real words, the others invented and unused."""
    first = ["c a", "ca t</w>", "a r", "p h", "ph o", "t o</w>", "pho to</w>", "\u00c3 \u00a9</w>"]
    letters = text_module._byte_letters()[100:]
    pairs = [(a, b) for a in letters for b in letters]
    rest = [*map(" ".join, pairs), *(f"{a}{b} {letters[c]}" for c in (0, 1) for a, b in pairs)]
    path = folder / "merges.txt.gz"
    lines = ["#version: 0.2", *first, *rest[: merges - len(first)], "left out", ""]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_clip_follows_the_rules_of_open_clip(clip):
    tokenizer = clip
    assert tokenizer.vocab_size == 49408
    assert tokenizer.id_to_token(49406) == "<|startoftext|>"
    assert tokenizer.id_to_token(0) == "!"
    assert tokenizer.id_to_token(256) == "!</w>"
    assert words(tokenizer, "A  Photo,\ncats é12") == (
        "<|startoftext|> a</w> photo</w> ,</w> ca t s</w> Ã©</w> 1</w> 2</w> <|endoftext|>"
    )
    ids, mask = tokenizer.encode(["cat", "a a a a a"], 5)
    assert ids.tolist() == [[49406, 513, 49407, 0, 0], [49406, 320, 320, 320, 49407]]
    assert mask.sum(1).tolist() == [3, 5]


def test_clip_rejects_a_short_merges_file(tmp_path):
    with pytest.raises(UserError, match="has 100 merges, CLIP's file has 48894"):
        clip_tokenizer(clip_file(tmp_path, merges=99))


@pytest.mark.parametrize("kind", ["wordpiece", "cased", "clip"])
def test_saved_tokenizer_gives_equal_ids(tmp_path, kind, clip):
    cased = wordpiece_tokenizer(VOCAB, lowercase=False)
    tokenizer = {"clip": clip, "wordpiece": TOKENIZER, "cased": cased}[kind]
    texts = ["Cats [MASK] café", "", "a [SEP]! <|endoftext|> 中文", "don't " * 9, "“&amp;amp;”\x07"]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = FixedLengthTokenizer.load(tmp_path / "tokenizer.json")
    for other in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        assert (other.vocab_size, other.pad_id) == (tokenizer.vocab_size, tokenizer.pad_id)
        for a, b in zip(other.encode(texts, 9), tokenizer.encode(texts, 9), strict=True):
            np.testing.assert_array_equal(a, b)
    assert loaded.to_json() == tokenizer.to_json()


def test_tokenizers_library_reads_a_saved_tokenizer(tmp_path, clip):
    """The library does not clean texts for CLIP."""
    TOKENIZER.save(tmp_path / "tokenizer.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encodings = other.encode_batch(["Cats [MASK] café", "a"])
    ids, mask = TOKENIZER.encode(["Cats [MASK] café", "a"], 6)
    assert [x.ids for x in encodings] == ids.tolist()
    assert [x.attention_mask for x in encodings] == mask.astype(int).tolist()
    clip.save(tmp_path / "tokenizer.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids, mask = clip.encode(["A photo, cats é12"], 20)
    assert other.encode("A  Photo,\ncats é12").ids == ids[mask].tolist()


def test_from_json_rejects_an_unknown_cleaning(clip):
    content = json.loads(clip.to_json())
    content["normalizer"]["clean"] = "other"
    with pytest.raises(UserError, match="cleaning 'other'"):
        FixedLengthTokenizer.from_json(json.dumps(content))


def word_level():
    """Returns a third-party tokenizer without special tokens around texts."""
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "<pad>": 2}, "<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return inner


def test_load_reads_a_tokenizer_without_frame_and_padding(tmp_path):
    inner = word_level()
    inner.enable_truncation(2)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer("auto", str(tmp_path))
    assert tokenizer.encode(["a b a"], 5)[0].tolist() == [[1, 0, 1, 2, 2]]


def test_encode_rejects_padding_token_in_a_text():
    tokenizer = FixedLengthTokenizer(word_level(), pad_id=2)
    assert tokenizer.encode(["a"], 3)[0].tolist() == [[1, 2, 2]]
    with pytest.raises(Damaged, match=r"text 'a <pad> a': <pad> is the model's padding token"):
        tokenizer.encode(["a", "a <pad> a"], 9)


def test_load_finds_files_and_folders(tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    for kind, path in (("wordpiece", vocab), ("auto", vocab), ("wordpiece", tmp_path)):
        found = load_tokenizer(kind, str(path))
        assert found.vocab_size == len(VOCAB)
        assert words(found, "CATS") == "[CLS] cat ##s [SEP]"
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert words(load_tokenizer("auto", str(tmp_path)), "Cat") == "[CLS] Cat [SEP]"
    merges = clip_file(tmp_path)
    assert load_tokenizer("auto", str(merges)).vocab_size == 49408


@pytest.mark.parametrize(
    ("kind", "path", "message"),
    [
        ("wordpiece", "{folder}/nowhere.txt", r"no file or folder .*nowhere\.txt"),
        ("auto", "{folder}", "has no tokenizer.json or vocab.txt"),
        ("auto", "{folder}/bad.json", "bad.json: This is not the content"),
        ("wordpiece", "{folder}/bad.json", "bad.json: This is not the content"),
        ("wordpiece", "{folder}/bad.txt", r"has no \[PAD\]"),
        ("clip", "{folder}/bad.gz", "Cannot unpack .*bad.gz"),
        ("auto", "nobody/nothing", "neither a file or folder nor to be had from the hub"),
    ],
)
def test_load_rejects_other_files(tmp_path, monkeypatch, kind, path, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    if "bad" in path:
        (tmp_path / path.rpartition("/")[-1]).write_text('{"a": 1}')
    with pytest.raises(UserError, match=message):
        load_tokenizer(kind, path.format(folder=tmp_path))


def test_wordpiece_rejects_repeated_entries_and_unknown_ids():
    with pytest.raises(UserError, match="twice"):
        wordpiece_tokenizer([*VOCAB, "cat"])
    for number in (len(VOCAB), -1):
        with pytest.raises(IndexError):
            TOKENIZER.id_to_token(number)


def test_load_requests_the_hub_once_without_network(monkeypatch):
    import huggingface_hub
    import transformers

    asked = []

    def load(name, local_files_only=False):
        asked.append("cache" if local_files_only else "hub")
        raise OSError("not in the cache")

    def info(self, name, *, timeout):
        asked.append(timeout)
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    message = r"config\.tokenizer\.path 'some/name' is neither .* \(no route to the hub\)"
    with pytest.raises(UserError, match=message):
        load_tokenizer("auto", "some/name")
    assert asked == ["cache", hub.SECONDS]
