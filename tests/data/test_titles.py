"""Texts with titles: from records and from plain texts to ids, in training and in evaluation."""

from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_readers
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import eval_batches, train_batches
from big_retrieval.data.sources import TextRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.bm25 import side_texts, text_columns
from tests.helpers import lexical_texts, tiny
from tests.readers import text_reader

WORDS = ["a", "b", "c", "d", "e", "s", "t", "u"]
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
SPEC = text_reader("text", title="title", length=7, tokenizer=TOKENIZER)


def said(ids: np.ndarray) -> str:
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
    ids, mask = TOKENIZER.encode([text], 7, [title])
    assert said(ids[0]) == wanted
    assert mask[0].sum() == len(wanted.split())
    assert ids[0, mask[0]][-1] == TOKENIZER.encode([""], 2)[0][0, 1]


def test_the_pairs_of_the_library_itself() -> None:
    """Of transformers' form for pairs, cut where ours is."""
    inner = TOKENIZER._inner
    for title, text in (("s t", "a b c d e"), ("s", "a"), ("s t u", "e d c b")):
        whole = inner.encode(title, text).ids
        ours, _ = TOKENIZER.encode([text], len(whole), [title])
        assert ours[0].tolist() == whole
        cut, _ = TOKENIZER.encode([text], len(whole) - 1, [title])
        assert cut[0].tolist() == [*whole[:-2], whole[-1]]


def test_a_tokenizer_keeps_its_pairs_when_it_is_saved() -> None:
    again = type(TOKENIZER).from_json(TOKENIZER.to_json())
    wanted, _ = TOKENIZER.encode(["a"], 7, ["s"])
    np.testing.assert_array_equal(again.encode(["a"], 7, ["s"])[0], wanted)


def test_a_prefix_stands_in_front_of_the_title() -> None:
    spec = text_reader("text", title="title", length=7, tokenizer=TOKENIZER, prefix="u ")
    ids = stack(spec, [("s", "a"), ("", "a"), "a", None])["ids"]
    found = [said(row) for row in ids]
    assert found[:2] == ["[CLS] u s [SEP] a [SEP]", "[CLS] u a [SEP]"]
    assert found[2:] == ["[CLS] u a [SEP]", "[CLS] [SEP]"]


def test_titles_of_records() -> None:
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
def test_titles_that_do_not_fit(row: dict[str, Any], message: str) -> None:
    with pytest.raises(Damaged, match=message):
        source_texts(source(row), 0, SPEC)


def test_training_and_evaluation_read_the_same() -> None:
    rows = [
        {"text": "a b", "title": "s", "n": [{"title": "t", "text": "e"}, "d"]},
        {"text": "c", "title": "", "n": []},
        {"text": "", "title": "u", "n": ["d"]},
    ]
    of = source(*rows)
    (batch,) = train_batches(
        of, fields={"d": SPEC}, order=Order(3, 0), batch_size=3, rows=np.arange(3), start_batch=0,
        stop_batch=1, negatives=NegativeSampling("d", "n", 2),
    )  # fmt: skip
    trained = {r: said(ids) for r, ids in zip(batch["record"], batch["d"]["ids"], strict=True)}
    (found,) = eval_batches(of, {"d": SPEC}, field="d", batch_size=3)
    assert [said(ids) for ids in found["d"]["ids"]] == [trained[0], trained[1], trained[2]]
    assert trained[0] == "[CLS] s [SEP] a b [SEP]"
    assert trained[2] == "[CLS] u [SEP]"
    place = batch["record"].tolist().index(0)
    negatives = {said(ids) for ids in batch["negatives"]["d"]["ids"][place]}
    assert negatives == {"[CLS] t [SEP] e [SEP]", "[CLS] d [SEP]"}


def test_a_column_of_titles_that_no_record_has() -> None:
    with pytest.raises(UserError, match=r"config.fields.d.title 'title' is in none of the first 2"):
        try_record(source({"text": "a"}, {"text": "b"}), {"d": SPEC})
    try_record(source({"text": "a", "title": ""}), {"d": SPEC})


def test_texts_at_hand_with_titles() -> None:
    of = TextRecords(["a", "b"], column="text", titles=["s", ""])
    (found,) = eval_batches(of, {"d": SPEC}, field="d", batch_size=2)
    wanted = ["[CLS] s [SEP] a [SEP]", "[CLS] b [SEP]"]
    assert [said(ids) for ids in found["d"]["ids"]] == wanted
    (found,) = eval_batches(TextRecords(["a"], column="text"), {"d": SPEC}, field="d", batch_size=1)
    assert said(found["d"]["ids"][0]) == "[CLS] a [SEP]"


def test_bm25_reads_titles_in_front_of_texts() -> None:
    changes = lexical_texts()
    changes["fields"]["document"].update(column="text", title="title")
    config = tiny(**changes)
    assert text_columns(config)["document"] == ("title", "text")
    of = source({"text": "a", "title": "s"}, {"text": "b", "title": ""})
    assert side_texts(of, text_columns(config)["document"]) == ["s a", "b"]
    assert make_readers(config, TOKENIZER)["document"].field.title == "title"
    assert configs.TextField().title == ""
