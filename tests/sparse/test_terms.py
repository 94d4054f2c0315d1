"""Which word pieces become terms, of vocabularies of several kinds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.tokenizers import clip_tokenizer, wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.models.towers import lexical_terms
from big_retrieval.sparse.terms import Terms, check_rule, terms_of, terms_of_size
from tests.helpers import lexical_texts, tiny
from tests.interop.test_towers import DATA

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = [*SPECIAL, "[unused993]", "!", "a", "cat", "##s", "café", "日", "##ß", "[unused]"]
# a multilingual one has its specials first, its unused tokens behind, and few words in ASCII
MULTILINGUAL = ["[PAD]", *(f"[unused{n}]" for n in range(1, 4)), "[UNK]", "[CLS]", "[SEP]",
                "[MASK]", "¡", "кот", "##ы", "cat", "[unused99]"]  # fmt: skip


def named(rule: str, vocabulary: list[str]) -> list[str]:
    return list(terms_of(rule, wordpiece_tokenizer(vocabulary)).words)


def test_rules_on_an_english_vocabulary() -> None:
    words = ["!", "a", "cat", "##s", "café", "日", "##ß", "[unused]"]  # the last is no unused one
    assert named("all", BERT) == BERT
    assert named("words", BERT) == words
    assert named("ascii", BERT) == ["!", "a", "cat", "##s", "[unused]"]
    assert named("8-", BERT) == words
    assert named("0-", BERT) == BERT


def test_rules_on_a_multilingual_vocabulary() -> None:
    assert named("words", MULTILINGUAL) == ["¡", "кот", "##ы", "cat"]
    assert named("ascii", MULTILINGUAL) == ["cat"]
    assert named("9-", MULTILINGUAL) == ["кот", "##ы", "cat", "[unused99]"]


def test_rules_on_byte_pairs() -> None:
    """CLIP's start and end are no words; its bytes above 127 are written as other characters."""
    tokenizer = clip_tokenizer(DATA / "clip_tokenizer" / "merges.txt.gz", merges=20)
    words, plain = terms_of("words", tokenizer), terms_of("ascii", tokenizer)
    ends = tokenizer.special_ids
    assert len(ends) == 2
    assert ends == {tokenizer.vocab_size - 2, tokenizer.vocab_size - 1}
    assert words.ids == range(tokenizer.vocab_size - 2)
    assert plain.words == tuple(name for name in words.words if name.isascii())
    assert 0 < len(plain) < len(words)


def test_ids_that_follow_each_other_are_a_range() -> None:
    """So that a head need not look its rows up."""
    tokenizer = wordpiece_tokenizer(BERT)
    assert terms_of("8-", tokenizer).ids == range(8, len(BERT))
    assert terms_of("words", tokenizer).ids == range(8, len(BERT))
    assert terms_of("ascii", tokenizer).ids == (8, 9, 10, 11, 15)


@pytest.mark.parametrize("rule", ["", "some", "-5", "1000", "words-", "1e3-"])
def test_unknown_rules(rule: str) -> None:
    assert "it must be 'all', 'words', 'ascii'" in check_rule(rule)
    with pytest.raises(UserError, match="terms is"):
        terms_of(rule, wordpiece_tokenizer(BERT))


@pytest.mark.parametrize("rule", ["500-", "ascii"])
def test_rules_that_leave_nothing(rule: str) -> None:
    vocabulary = [*SPECIAL, "日"]
    with pytest.raises(UserError, match=rf"terms '{rule}' leaves none of the {len(vocabulary)}"):
        terms_of(rule, wordpiece_tokenizer(vocabulary))


@pytest.mark.parametrize("rule", ["all", "words", "ascii", "3-"])
def test_the_table_leaves_special_tokens_out(rule: str) -> None:
    """Also where they have a term: they are no words of a text."""
    tokenizer = wordpiece_tokenizer(BERT)
    terms = terms_of(rule, tokenizer)
    for number, term in enumerate(terms.table.tolist()):
        if number in tokenizer.special_ids or number not in terms.ids:
            assert term == -1
        else:
            assert terms.ids[term] == number
            assert terms.words[term] == BERT[number]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["all", "words", "ascii"]))
def test_bags_against_sets(seed: int, rule: str) -> None:
    rng = np.random.default_rng(seed)
    terms = terms_of(rule, wordpiece_tokenizer(BERT))
    ids, mask = rng.integers(0, len(BERT), (4, 6)), rng.random((4, 6)) < 0.7
    mask[-1] = False
    found = terms.bag(ids, mask)
    assert found.shape == (4, len(terms))
    assert found.dtype == np.float32
    for row, own, present in zip(found.toarray(), ids, mask, strict=True):
        expected = {c for c in terms.table[own[present]].tolist() if c >= 0}
        assert {*np.flatnonzero(row).tolist()} == expected
        assert {*row[row != 0].tolist()} <= {1.0}


def test_a_bag_is_of_a_text() -> None:
    tokenizer = wordpiece_tokenizer(BERT)
    terms = terms_of("words", tokenizer)
    ids, mask = tokenizer.encode(["Cats a cat!", "[MASK] 日 ?", ""], 10)
    bags = terms.bag(ids, mask).toarray()
    found = [{terms.words[c] for c in np.flatnonzero(row)} for row in bags]
    assert found == [{"cat", "##s", "a", "!"}, {"日"}, set()]


def test_fingerprints_tell_columns_apart() -> None:
    whole = terms_of("words", wordpiece_tokenizer(BERT))
    assert whole.fingerprint() == terms_of("8-", wordpiece_tokenizer(BERT)).fingerprint()
    turned = [*SPECIAL, "[unused993]", "a", "!", *BERT[10:]]
    others = [
        terms_of("ascii", wordpiece_tokenizer(BERT)),
        terms_of("words", wordpiece_tokenizer(turned)),
        terms_of("words", wordpiece_tokenizer([*BERT, "dog"])),
        dataclasses.replace(whole, ids=range(7, len(BERT) - 1)),
    ]
    assert len({each.fingerprint() for each in [whole, *others]}) == 5


def test_sizes_without_a_tokenizer() -> None:
    """Of BERT's uncased vocabulary as many as the table of the module says."""
    sizes = {"all": 30_522, "words": 29_523, "ascii": 27_623, "1000-": 29_522}
    assert {rule: len(terms_of_size(rule, 30_522)) for rule in sizes} == sizes
    assert len(terms_of_size("words", 119_547)) == 119_547
    assert len(terms_of_size("1000-", 119_547)) == 118_547
    assert len(terms_of_size("1000-", 50)) == 1


def test_images_have_as_many_columns_as_their_texts() -> None:
    """Also where the word table has more rows than the tokenizer has ids."""
    tokenizer = wordpiece_tokenizer(BERT)
    heads = {
        f"fields__{name}__head": recipe.entry(configs.Lexical(), tied=name == "text")
        for name in ("image", "text")
    }
    for rows, rule in ((None, "all"), (90, "all"), (90, "words")):
        changes = {f"{head}__terms": rule for head in heads}
        found = lexical_terms(
            tiny(**heads, **changes, towers__text__vocab_size=rows), tokenizer.vocab_size, tokenizer
        )
        assert found["image"] == found["text"]
        assert len(found["image"]) == (rows or len(BERT) if rule == "all" else 8)


def own_columns(tokenizer: FixedLengthTokenizer, rule: str, rows: int | None) -> Terms:
    """The terms of a head whose word table has so many rows."""
    texts = lexical_texts(terms=rule)
    for name in ("text", "other"):
        texts["towers"][name] = recipe.entry(
            configs.Bert(), width=16, depth=1, heads=2, mlp=32, pool="none", vocab_size=rows
        )
    return lexical_terms(tiny(**texts), tokenizer.vocab_size, tokenizer)["query"]


@pytest.mark.parametrize("rows", [None, len(BERT) + 3])
def test_rows_of_the_word_table_without_a_token(rows: int | None) -> None:
    """They have a term under "all"; special tokens are no words there, either."""
    tokenizer = wordpiece_tokenizer(BERT)
    terms = own_columns(tokenizer, "all", rows)
    assert len(terms) == (rows or len(BERT))
    assert len(own_columns(tokenizer, "words", rows)) == 8
    ids, mask = tokenizer.encode(["a cat"], 6)
    bag = terms.bag(ids, mask).toarray()[0]
    assert {BERT[terms.ids[c]] for c in np.flatnonzero(bag)} == {"a", "cat"}
