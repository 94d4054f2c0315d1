"""Texts with titles: from records and from plain texts to ids, in training and in evaluation."""

from typing import Any

import numpy as np
import pytest

from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_readers
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.sources import TextRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.bm25 import side_texts, text_columns
from tests.helpers import lexical_texts, tiny
from tests.readers import text_reader, train_batch_of

WORDS = ["a", "b", "c", "d", "e", "s", "t", "u"]
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
SPEC = text_reader("text", title="title", length=7, tokenizer=TOKENIZER)


def decoded(ids: np.ndarray) -> str:
    return " ".join(TOKENIZER.id_to_token(i) for i in ids.tolist() if i)


def source(*rows: dict[str, Any]) -> Records:
    return Records(Rows(rows, "shop"), image=(), text="")


@pytest.mark.parametrize(
    ("title", "text", "wanted"),
    [
        ("s t", "a b", "[CLS] s t [SEP] a b [SEP]"),
        ("s t", "a b c d e", "[CLS] s t [SEP] a b [SEP]"),
        ("s t u s t u", "a", "[CLS] s t u s t [SEP]"),
        ("", "a b", "[CLS] a b [SEP]"),
        ("s t", "", "[CLS] s t [SEP]"),
        ("", "", "[CLS] [SEP]"),
    ],
)
def test_pairs_are_cut_at_their_end_and_keep_the_last_separator(
    title: str, text: str, wanted: str
) -> None:
    again = type(TOKENIZER).from_json(TOKENIZER.to_json())
    for tokenizer in (TOKENIZER, again):
        ids, mask = tokenizer.encode([text], 7, [title])
        assert decoded(ids[0]) == wanted
        assert mask[0].sum() == len(wanted.split())


def test_pairs_equal_the_pairs_of_the_tokenizers_library() -> None:
    inner = TOKENIZER._inner
    for title, text in (("s t", "a b c d e"), ("s", "a"), ("s t u", "e d c b")):
        whole = inner.encode(title, text).ids
        assert TOKENIZER.encode([text], len(whole), [title])[0][0].tolist() == whole
        cut, _ = TOKENIZER.encode([text], len(whole) - 1, [title])
        assert cut[0].tolist() == [*whole[:-2], whole[-1]]


def test_prefix_is_put_before_the_title() -> None:
    spec = text_reader("text", title="title", length=7, tokenizer=TOKENIZER, prefix="u ")
    ids = stack(spec, [("s", "a"), ("", "a"), "a", None])["ids"]
    found = [decoded(row) for row in ids]
    assert found[:2] == ["[CLS] u s [SEP] a [SEP]", "[CLS] u a [SEP]"]
    assert found[2:] == ["[CLS] u a [SEP]", "[CLS] [SEP]"]


def test_source_texts_pairs_titles_and_texts() -> None:
    of = source(
        {"text": "a", "title": "s"},
        {"text": ["a", "b"], "title": ["s", None]},
        {"text": ("a", "b"), "title": "t"},
        {"text": "a", "title": None},
        {"text": "", "title": "u"},
        {"text": "a"},
    )
    found = [source_texts(of, index, SPEC) for index in range(len(of))]
    assert found[:3] == [(("s", "a"),), (("s", "a"), ("", "b")), (("t", "a"), ("t", "b"))]
    assert found[3:] == [("a",), (("u", ""),), ("a",)]
    assert not SPEC.lacks(of[4])
    mixed = MixedSource({"x": of}, {"x": None})
    assert source_texts(mixed, 2, SPEC) == found[2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": ["a", "b"], "title": ["s"]}, "'title' has 1 titles for 2 texts"),
        ({"text": "a", "title": [3]}, "'title' has 3, not a title"),
        ({"text": "", "title": " "}, "'text' has no text"),
    ],
)
def test_source_texts_rejects_titles_that_do_not_fit(row: dict[str, Any], message: str) -> None:
    with pytest.raises(Damaged, match=message):
        source_texts(source(row), 0, SPEC)


def test_training_and_evaluation_read_the_same() -> None:
    rows = [
        {"text": "a b", "title": "s", "n": [{"title": "t", "text": "e"}, "d"]},
        {"text": "c", "title": "", "n": []},
        {"text": "", "title": "u", "n": ["d"]},
    ]
    of = source(*rows)
    batch = train_batch_of(of, {"d": SPEC}, negatives=NegativeSampling("d", "n", 2))
    trained = {r: decoded(ids) for r, ids in zip(batch["record"], batch["d"]["ids"], strict=True)}
    (found,) = eval_batches(of, {"d": SPEC}, field="d", batch_size=3)
    assert [decoded(ids) for ids in found["d"]["ids"]] == [trained[0], trained[1], trained[2]]
    assert trained[0] == "[CLS] s [SEP] a b [SEP]"
    assert trained[2] == "[CLS] u [SEP]"
    place = batch["record"].tolist().index(0)
    negatives = {decoded(ids) for ids in batch["negatives"]["d"]["ids"][place]}
    assert negatives == {"[CLS] t [SEP] e [SEP]", "[CLS] d [SEP]"}


def test_try_record_rejects_a_column_of_titles_that_no_record_has() -> None:
    with pytest.raises(UserError, match=r"config.fields.d.title 'title' is in none of the first 2"):
        try_record(source({"text": "a"}, {"text": "b"}), {"d": SPEC})
    try_record(source({"text": "a", "title": ""}), {"d": SPEC})


def test_texts_in_memory_have_titles() -> None:
    of = TextRecords(["a", "b"], column="text", titles=["s", ""])
    (found,) = eval_batches(of, {"d": SPEC}, field="d", batch_size=2)
    wanted = ["[CLS] s [SEP] a [SEP]", "[CLS] b [SEP]"]
    assert [decoded(ids) for ids in found["d"]["ids"]] == wanted
    (found,) = eval_batches(TextRecords(["a"], column="text"), {"d": SPEC}, field="d", batch_size=1)
    assert decoded(found["d"]["ids"][0]) == "[CLS] a [SEP]"


def test_bm25_reads_titles_before_texts() -> None:
    changes = lexical_texts()
    changes["fields"]["document"].update(column="text", title="title")
    config = tiny(**changes)
    assert text_columns(config)["document"] == ("title", "text")
    of = source({"text": "a", "title": "s"}, {"text": "b", "title": ""})
    assert side_texts(of, text_columns(config)["document"]) == ["s a", "b"]
    assert make_readers(config, TOKENIZER)["document"].field.title == "title"
