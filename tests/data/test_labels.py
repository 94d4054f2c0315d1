"""Labels of pairs and optional fields, from records to batches."""

from typing import Any

import numpy as np
import pytest

from big_retrieval.config import PairLabels
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.labels import label_types, number_of, read_labels
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from tests.readers import image_reader, text_reader, train_batch_of

TOKENIZER = wordpiece_tokenizer(learn_wordpiece(["query: red shoe", "blue shoe"], 64))
LABELS = PairLabels(query="q", document="d", score="s", weight="inverse")
PIXELS = np.full((8, 8, 3), 200, np.uint8)


def source(rows: list[dict[str, Any]]) -> Records:
    return Records(Rows(rows, "shop"), image=("image",), text="")


def row(number: int, **changes: Any) -> dict[str, Any]:
    values = {"q": f"q{number % 2}", "d": number, "s": 100 - number, "query": "red shoe"}
    return {**values, "title": "blue shoe", "image": PIXELS, **changes}


def specs() -> dict[str, Any]:
    return {
        "query": text_reader("query", length=8, tokenizer=TOKENIZER),
        "title": text_reader("title", length=8, tokenizer=TOKENIZER, optional=True),
        "image": image_reader("image", size=8, optional=True),
    }


def test_number_of_is_stable_and_distinct() -> None:
    assert number_of(17) == 17
    assert number_of("17") == number_of("17") != number_of("18")
    assert number_of(np.int64(5)) == 5
    numbers = {number_of(f"product-{i}") for i in range(10_000)}
    assert len(numbers) == 10_000
    assert all(0 <= n < 2**31 for n in (*numbers, number_of(2**40), number_of(-1)))


def test_read_labels_returns_ids_and_weight() -> None:
    found = read_labels({"q": "a", "d": 3, "s": 91}, LABELS, "here")
    assert found == {"query_id": number_of("a"), "document_id": 3, "weight": pytest.approx(10)}
    assert read_labels({"s": 1}, PairLabels(), "here") == {}
    assert set(label_types(LABELS)) == set(found)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"d": 1, "s": 1}, "'q' is missing; it has d, s"),
        ({"q": "", "d": 1, "s": 1}, "'q' is empty"),
        ({"q": "a", "d": 1, "s": "good"}, "'good', not a number"),
        ({"q": "a", "d": 1, "s": -2}, "-2, not from 0 to 100"),
        ({"q": "a", "d": 1, "s": float("nan")}, "nan, not from 0 to 100"),
        ({"q": "a", "d": 1, "s": 101}, "see config.labels.s_max"),
    ],
)
def test_read_labels_rejects_wrong_values(record: dict[str, Any], words: str) -> None:
    with pytest.raises(Damaged, match=words):
        read_labels(record, LABELS, "shop.csv, line 4")


TWO_OF_TWO = [
    row(n, query=["red", "blue"], title=["shoe", "red"], q=["a0", "a1"], d=["b0", "b1"])
    for n in range(8)
]


def two_texts() -> dict[str, Any]:
    how: Any = {"length": 8, "tokenizer": TOKENIZER}
    return {name: text_reader(name, **how) for name in ("query", "title")}


def test_labels_follow_the_drawn_text_of_their_field() -> None:
    labels = PairLabels(query="q", document="d", query_field="query", document_field="title")
    batch = train_batch_of(source(TWO_OF_TWO), two_texts(), labels=labels)
    seen = set()
    for row in range(8):
        number = {}
        for name, column, letter in (("query", "query_id", "a"), ("title", "document_id", "b")):
            texts, _ = TOKENIZER.encode(TWO_OF_TWO[0][name], 8)
            number[name] = np.flatnonzero((texts == batch[name]["ids"][row]).all(1)).item()
            assert batch[column][row] == number_of(f"{letter}{number[name]}")
        seen.add((number["query"], number["title"]))
    assert len(seen) > 2  # some pairs of different numbers


def test_several_ids_need_a_field_with_one_text_each() -> None:
    with pytest.raises(UserError, match=r"'q' has 2 values .*in config.labels.query_field"):
        try_record(source(TWO_OF_TWO), two_texts(), PairLabels(query="q"))
    short = [{**TWO_OF_TWO[0], "q": ["a0"]}]
    with pytest.raises(UserError, match="'q' has 1 values for 2 texts of 'query'"):
        try_record(source(short), two_texts(), PairLabels(query="q", query_field="query"))


def test_batch_has_labels_and_marks_missing_fields() -> None:
    rows = [row(0), row(1, title=""), row(2, image=None), row(3, title=None, image=None)]
    batch = train_batch_of(source(rows), specs(), labels=LABELS)
    order = batch["record"]
    assert batch["weight"].dtype == np.float32
    np.testing.assert_allclose(batch["weight"], 100 / (order + 1))
    np.testing.assert_array_equal(batch["document_id"], order)
    np.testing.assert_array_equal(batch["query_id"], [number_of(f"q{n % 2}") for n in order])
    np.testing.assert_array_equal(batch["title"]["present"], np.isin(order, [0, 2]))
    np.testing.assert_array_equal(batch["image"]["present"], np.isin(order, [0, 1]))
    assert "present" not in batch["query"]
    dark = batch["image"]["pixels"].reshape(4, -1).max(1) == 0
    np.testing.assert_array_equal(dark, ~batch["image"]["present"])


def test_evaluation_leaves_missing_fields_out() -> None:
    rows = [row(0), row(1, image=None), row(2)]
    (batch,) = eval_batches(source(rows), specs(), field="image", batch_size=4)
    np.testing.assert_array_equal(batch["valid"], [True, False, True, False])
    rows = [row(0), row(1, title=" "), row(2)]
    (batch,) = eval_batches(source(rows), specs(), field="title", batch_size=4)
    np.testing.assert_array_equal(batch["record"][batch["valid"]], [0, 2])


def test_try_record_rejects_a_field_without_values() -> None:
    with pytest.raises(UserError, match=r"config\.fields\.image\.column 'image' is in none of the"):
        try_record(source([row(0, image=None), row(1, image=None)]), specs(), LABELS)
    try_record(source([row(0, image=None), row(1)]), specs(), LABELS)
