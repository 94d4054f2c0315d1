"""Selection of terms from vocabularies of several kinds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.text.tokenizers import clip_tokenizer, wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.models.towers import lexical_terms
from big_retrieval.sparse.terms import Terms, check_rule, terms_of, terms_of_size
from tests.helpers import lexical_texts, tiny
from tests.interop.folders import DATA

SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["!", "a", "cat", "##s", "café", "日", "##ß", "[unused]"]  # the last one is a word
BERT = [*SPECIAL, "[unused993]", *WORDS]
TOKENIZER = wordpiece_tokenizer(BERT)
# Special tokens first, unused tokens at the end, and few words in ASCII.
MULTILINGUAL = ["[PAD]", *(f"[unused{n}]" for n in range(1, 4)), "[UNK]", "[CLS]", "[SEP]",
                "[MASK]", "¡", "кот", "##ы", "cat", "[unused99]"]  # fmt: skip


@pytest.mark.parametrize(
    ("vocabulary", "rule", "words"),
    [
        (BERT, "all", BERT),
        (BERT, "words", WORDS),
        (BERT, "ascii", ["!", "a", "cat", "##s", "[unused]"]),
        (BERT, "8-", WORDS),
        (BERT, "0-", BERT),
        (MULTILINGUAL, "words", ["¡", "кот", "##ы", "cat"]),
        (MULTILINGUAL, "ascii", ["cat"]),
        (MULTILINGUAL, "9-", ["кот", "##ы", "cat", "[unused99]"]),
    ],
)
def test_terms_of_rules(vocabulary: list[str], rule: str, words: list[str]) -> None:
    assert list(terms_of(rule, wordpiece_tokenizer(vocabulary)).words) == words


def test_terms_of_byte_pairs() -> None:
    """CLIP's start and end are not words; bytes above 127 are written as other characters."""
    tokenizer = clip_tokenizer(DATA / "clip_tokenizer" / "merges.txt.gz", merges=20)
    words, plain = terms_of("words", tokenizer), terms_of("ascii", tokenizer)
    ends = tokenizer.special_ids
    assert len(ends) == 2
    assert ends == {tokenizer.vocab_size - 2, tokenizer.vocab_size - 1}
    assert words.ids == range(tokenizer.vocab_size - 2)
    assert plain.words == tuple(name for name in words.words if name.isascii())
    assert 0 < len(plain) < len(words)


def test_consecutive_ids_are_a_range() -> None:
    assert terms_of("8-", TOKENIZER).ids == range(8, len(BERT))
    assert terms_of("words", TOKENIZER).ids == range(8, len(BERT))
    assert terms_of("ascii", TOKENIZER).ids == (8, 9, 10, 11, 15)


@pytest.mark.parametrize("rule", ["", "some", "-5", "1000", "words-", "1e3-"])
def test_terms_of_rejects_unknown_rules(rule: str) -> None:
    assert check_rule(rule)
    with pytest.raises(UserError, match="terms is"):
        terms_of(rule, TOKENIZER)


@pytest.mark.parametrize("rule", ["500-", "ascii"])
def test_terms_of_rejects_rules_that_select_nothing(rule: str) -> None:
    with pytest.raises(UserError, match=rf"terms '{rule}' leaves none of the 8 ids"):
        terms_of(rule, wordpiece_tokenizer([*SPECIAL, "日"]))


@pytest.mark.parametrize("rule", ["all", "words", "ascii", "3-"])
def test_table_has_no_special_tokens(rule: str) -> None:
    terms = terms_of(rule, TOKENIZER)
    for i, term in enumerate(terms.table.tolist()):
        if i in TOKENIZER.special_ids or i not in terms.ids:
            assert term == -1
        else:
            assert (terms.ids[term], terms.words[term]) == (i, BERT[i])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["all", "words", "ascii"]))
def test_bag_equals_sets(seed: int, rule: str) -> None:
    rng = np.random.default_rng(seed)
    terms = terms_of(rule, TOKENIZER)
    ids, mask = rng.integers(0, len(BERT), (4, 6)), rng.random((4, 6)) < 0.7
    mask[-1] = False
    bags = terms.bag(ids, mask)
    assert bags.shape == (4, len(terms))
    assert bags.dtype == np.float32
    for row, tokens, present in zip(bags.toarray(), ids, mask, strict=True):
        expected = {c for c in terms.table[tokens[present]].tolist() if c >= 0}
        assert {*np.flatnonzero(row).tolist()} == expected
        assert {*row[row != 0].tolist()} <= {1.0}


def test_bag_of_texts() -> None:
    terms = terms_of("words", TOKENIZER)
    bags = terms.bag(*TOKENIZER.encode(["Cats a cat!", "[MASK] 日 ?", ""], 10)).toarray()
    words = [{terms.words[c] for c in np.flatnonzero(row)} for row in bags]
    assert words == [{"cat", "##s", "a", "!"}, {"日"}, set()]


def test_fingerprints_differ() -> None:
    terms = terms_of("words", TOKENIZER)
    assert terms.fingerprint() == terms_of("8-", TOKENIZER).fingerprint()
    swapped = [*SPECIAL, "[unused993]", "a", "!", *BERT[10:]]
    others = [
        terms_of("ascii", TOKENIZER),
        terms_of("words", wordpiece_tokenizer(swapped)),
        terms_of("words", wordpiece_tokenizer([*BERT, "dog"])),
        dataclasses.replace(terms, ids=range(7, len(BERT) - 1)),
    ]
    assert len({x.fingerprint() for x in [terms, *others]}) == 5


def test_terms_of_size() -> None:
    """The counts for BERT's uncased vocabulary are in the table of the module."""
    sizes = {"all": 30_522, "words": 29_523, "ascii": 27_623, "1000-": 29_522}
    assert {rule: len(terms_of_size(rule, 30_522)) for rule in sizes} == sizes
    assert len(terms_of_size("words", 119_547)) == 119_547
    assert len(terms_of_size("1000-", 119_547)) == 118_547
    assert len(terms_of_size("1000-", 50)) == 1


def test_images_have_the_terms_of_their_texts() -> None:
    """Also if the word table has more rows than the tokenizer has ids."""
    heads = {
        f"fields__{name}__head": recipe.entry(configs.Lexical(), tied=name == "text")
        for name in ("image", "text")
    }
    for rows, rule in ((None, "all"), (90, "all"), (90, "words")):
        changes = {f"{head}__terms": rule for head in heads}
        config = tiny(**heads, **changes, towers__text__vocab_size=rows)
        terms = lexical_terms(config, TOKENIZER.vocab_size, TOKENIZER)
        assert terms["image"] == terms["text"]
        assert len(terms["image"]) == (rows or len(BERT) if rule == "all" else 8)


def head_terms(rule: str, rows: int | None) -> Terms:
    """The terms of a head with a word table of `rows` rows."""
    texts = lexical_texts(terms=rule)
    for name in ("text", "other"):
        texts["towers"][name] = recipe.entry(
            configs.Bert(), width=16, depth=1, heads=2, mlp=32, pool="none", vocab_size=rows
        )
    return lexical_terms(tiny(**texts), TOKENIZER.vocab_size, TOKENIZER)["query"]


@pytest.mark.parametrize("rows", [None, len(BERT) + 3])
def test_rows_of_the_word_table_without_a_token(rows: int | None) -> None:
    terms = head_terms("all", rows)
    assert len(terms) == (rows or len(BERT))
    assert len(head_terms("words", rows)) == 8
    bag = terms.bag(*TOKENIZER.encode(["a cat"], 6)).toarray()[0]
    assert {BERT[terms.ids[c]] for c in np.flatnonzero(bag)} == {"a", "cat"}
