"""Hard negatives: from a record's list to the arrays of a batch."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_negatives
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.inspection import format_inspection, sample_records
from big_retrieval.data.negatives import NegativeSampling, draw_negatives, read_negatives
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.train.step import abstract_batch
from tests.helpers import lexical_texts, tiny, user_error
from tests.readers import text_reader, train_batch_of

WORDS = [f"n{row}{item}" for row in range(6) for item in range(4)]
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "right", *WORDS])
K = 3
WANTED = NegativeSampling("document", "negatives", K)
FIELDS = {
    "document": text_reader("document", length=6, tokenizer=TOKENIZER),
    "query": text_reader("query", length=4, tokenizer=TOKENIZER),
}


def source(lists: list[Any]) -> Records:
    rows = [{"query": ["query", "right"], "document": "right", "negatives": x} for x in lists]
    return Records(Rows(rows, "shop"), image=(), text="")


def texts_of(ids: np.ndarray) -> list[str]:
    """Returns the words of rows of ids [n, L], without special tokens."""
    return [" ".join(TOKENIZER.id_to_token(i) for i in row if i > 3) for row in ids.tolist()]


def words(row: int, count: int) -> list[str]:
    return [f"n{row}{item}" for item in range(count)]


def test_batch_has_the_negatives_of_each_row_and_marks_padding() -> None:
    of = source([words(0, 4), words(1, 2), [], None, words(4, 3), words(5, 1)])
    batch = train_batch_of(of, FIELDS, negatives=WANTED)
    arrays, present = batch["negatives"]["document"], batch["negatives_valid"]
    assert arrays["ids"].shape == arrays["mask"].shape == (6, K, 6)
    assert (arrays["ids"].dtype, arrays["mask"].dtype, present.dtype) == (np.int32, bool, bool)
    for place, record in enumerate(batch["record"].tolist()):
        count = min(K, {0: 4, 1: 2, 4: 3, 5: 1}.get(record, 0))
        assert present[place].tolist() == [True] * count + [False] * (K - count)
        found = texts_of(arrays["ids"][place])
        assert len({*found[:count]}) == count
        assert {*found[:count]} <= {*words(record, 4)}
        assert found[count:] == [""] * (K - count)
    assert arrays["mask"].sum(-1).tolist() == np.where(present, 3, 2).tolist()


def test_draws_follow_from_seed_epoch_and_record_and_move_no_other_draw() -> None:
    of = source([words(row, 4) for row in range(6)])

    def drawn(seed: int, number: int) -> dict[int, list[str]]:
        batch = train_batch_of(of, FIELDS, seed=seed, index=number, negatives=WANTED)
        ids = batch["negatives"]["document"]["ids"]
        return {r: texts_of(ids[place]) for place, r in enumerate(batch["record"].tolist())}

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(0, 1)
    assert drawn(0, 0) != drawn(1, 0)
    everything = {text for number in range(8) for text in drawn(0, number)[2]}
    assert everything == {*words(2, 4)}
    with_them, without = (train_batch_of(of, FIELDS, negatives=x) for x in (WANTED, None))
    assert without.keys() == with_them.keys() - {"negatives", "negatives_valid"}
    for name in FIELDS:
        np.testing.assert_array_equal(with_them[name]["ids"], without[name]["ids"])


def test_lower_pools_come_first_and_pools_of_one_keep_their_order() -> None:
    items = [{"text": t, "title": "x", "pool": p} for t, p in (("a", 1), ("b", 0), ("c", 1))]
    found = [
        draw_negatives({"negatives": items}, NegativeSampling("d", "negatives", 2), "here", rng)
        for rng in map(np.random.default_rng, range(20))
    ]
    assert {first.text for first, _ in found} == {"b"}
    assert {second.text for _, second in found} == {"a", "c"}
    ordered = {"negatives": [{"text": x, "pool": pool} for pool, x in enumerate(words(0, 4))]}
    for rng in map(np.random.default_rng, range(8)):
        assert [x.text for x in draw_negatives(ordered, WANTED, "here", rng)] == words(0, K)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "'negatives' is 3, not a list of documents"),
        ([{"title": "no text"}], 'not {"title": ..., "text": ...}'),
        ([{"text": 5}], "has 5, not a text"),
    ],
)
def test_read_negatives_rejects_other_values(value: Any, message: str) -> None:
    with pytest.raises(Damaged, match=f"shop, line 7.*{re.escape(message)}"):
        read_negatives(value, "negatives", "shop, line 7")


def test_read_negatives_leaves_empty_texts_out() -> None:
    found = read_negatives(np.array(["a", " ", "b"]), "negatives", "here")
    assert [item.text for item in found] == ["a", "b"]
    assert [item.text for item in read_negatives("alone", "negatives", "here")] == ["alone"]
    assert read_negatives(({"text": None}, {"text": "c"}), "x", "here")[0].text == "c"


def test_try_record_rejects_a_column_that_no_record_has() -> None:
    with pytest.raises(UserError, match=r"config\.negatives\.column 'negatives' is in none"):
        try_record(source([None, [], None]), FIELDS, negatives=WANTED)
    try_record(source([None, ["n00"]]), FIELDS, negatives=WANTED)


def test_global_batch_has_the_shapes_of_the_abstract_batch() -> None:
    config = tiny(batch_size=8, **texts(), negatives__count=2)
    fields = {
        name: text_reader(name, length=field.length, tokenizer=TOKENIZER)
        for name, field in config.fields.items()
        if isinstance(field, configs.TextField)
    }
    of = source([words(row % 6, 3) for row in range(8)])
    arrays = train_batch_of(of, fields, negatives=make_negatives(config))
    mesh = parallel.make_mesh(config, jax.devices()[:2])
    batch = parallel.to_batch(arrays, mesh, 8)
    assert batch.negatives is not None
    assert batch.negatives["document"]["ids"].shape == (8, 2, 20)
    np.testing.assert_array_equal(np.asarray(batch.negatives_valid), arrays["negatives_valid"])
    assert {*batch.fields} == {"query", "document"}

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

    assert shapes(batch) == shapes(abstract_batch(config, mesh))
    assert abstract_batch(tiny(batch_size=8, **texts()), mesh).negatives is None


def texts() -> dict[str, Any]:
    """Returns changes of a tiny config: two text fields of pairs."""
    return {**lexical_texts(), "data": recipe.entry(configs.Pairs(), path="p.jsonl", image="")}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"negatives__count": -1}, ["config.negatives.count is -1"]),
        ({"negatives__column": ""}, ["config.negatives.column is empty"]),
        ({"negatives__field": "query"}, ["config.negatives.field is 'query'", "document"]),
        ({"data": recipe.entry(configs.Scenes())}, ["type 'scenes'", "no negatives"]),
    ],
)
def test_check_rejects_wrong_negatives(changes: dict[str, Any], parts: list[str]) -> None:
    check(tiny(**texts(), negatives__count=1))
    with user_error(*parts):
        check(tiny(**{**texts(), "negatives__count": 1, **changes}))


def test_check_rejects_negatives_without_a_text_field_of_documents() -> None:
    with pytest.raises(UserError, match=r"side 'document' is not one text field \(it has: image\)"):
        check(tiny(negatives__count=1, data=recipe.entry(configs.Pairs(), path="pairs.jsonl")))


def test_generated_pairs_have_other_titles_as_negatives() -> None:
    of = GradedScenes(split="in_domain", size=16, count=40).build()
    for index in range(0, len(of), 40):
        record = of[index]
        assert record["title"] not in record["negatives"]
        assert len({*record["negatives"]}) == len(record["negatives"])
    assert any(of[index]["negatives"] for index in range(0, len(of), 40))


def test_inspection_counts_negatives() -> None:
    of = source([words(0, 4), [], words(1, 2), None])
    sample = sample_records(of, FIELDS, 10, WANTED)
    assert "negatives   1.5 a record, 2 records without" in format_inspection(of, FIELDS, sample)
