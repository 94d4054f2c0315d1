"""Records that share texts or images are positives of each other; against sets and loops."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tradeoff_systems import contain
from big_retrieval import config as configs
from big_retrieval.data.duplicates import FieldContents
from big_retrieval.data.judged import qrels
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.evals.positives import Positives, fill_missing, keys_of
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.test_groups import (
    SPECS,
    WORDS,
    InputEncoder,
    Listed,
    embed_image,
    embed_text,
    plain_metrics,
)

Pairs = list[tuple[int, tuple[str, ...]]]  # index of the picture, captions
DRAWN = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=7,
)
HELD = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=5, max_size=5)


class Pictures(Listed):
    """Records that may have the same picture, which `cell` identifies without opening it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        which, captions = self.records[index]
        return {"image": self.cell(index, "image"), "captions": captions, "kind": which}

    def cell(self, index: int, column: str) -> np.ndarray:
        return np.full((4, 4, 3), self.records[index][0], np.uint8)


def contents(held: list[list[int]]) -> tuple[FieldContents, list[list[int]]]:
    """Values of records in both forms, numbered by first occurrence."""
    numbers: dict[int, int] = {}
    lists = [[numbers.setdefault(each, len(numbers)) for each in values] for values in held]
    starts = np.cumsum([0, *map(len, lists)])
    return FieldContents(starts, np.array([v for values in lists for v in values])), lists


@settings(max_examples=80, deadline=None)
@given(first=HELD, second=HELD)
def test_values_of_one_record_are_positives(
    first: list[list[int]], second: list[list[int]]
) -> None:
    (a, held_a), (b, held_b) = contents(first), contents(second)
    keys = keys_of(a, b)
    items = [
        np.array([(r, i) for r, values in enumerate(held) for i in range(len(values))])
        for held in (held_a, held_b)
    ]
    (x, of_x), (y, of_y) = (each.lookup(item) for each, item in zip(keys, items, strict=True))
    assert of_x.tolist() == [v for values in held_a for v in values]
    assert of_y.tolist() == [v for values in held_b for v in values]
    right = np.stack([Positives(x, y).mask(i) for i in range(len(of_x))])
    assert (right == np.stack([Positives(y, x).mask(j) for j in range(len(of_y))]).T).all()
    for i, u in enumerate(of_x):
        for j, w in enumerate(of_y):
            together = any(u in p and w in q for p, q in zip(held_a, held_b, strict=True))
            assert right[i, j] == together


def test_fill_missing_adds_new_values() -> None:
    found = fill_missing(FieldContents(np.array([0, 2, 2, 3, 3]), np.array([0, 1, 1])))
    assert found.starts.tolist() == [0, 2, 3, 4, 5]
    assert found.values.tolist() == [0, 1, 2, 1, 3]
    nothing = FieldContents(np.zeros(4, int), np.zeros(0, int))
    assert fill_missing(nothing).values.tolist() == [0, 1, 2]


def plain(records: Pairs) -> dict[str, float]:
    """The metrics by loops: a picture and a text of one record are positives."""
    held = {(which, text) for which, texts in records for text in texts}
    images = [(which, embed_image(which)) for which, _ in records]
    texts = [(text, embed_text(text)) for _, captions in records for text in captions]
    return plain_metrics(images, texts, lambda which, text: (which, text) in held)


def evaluator(records: Pairs, devices: int = 1, duplicates: bool = True, group: str = "") -> Bound:
    part, topology = configs.Retrieval(recall_at=(1, 2), group=group), TOPOLOGIES["euclidean"]
    encoder = InputEncoder(devices)
    return bound(part, Pictures(records), SPECS, topology, encoder, duplicates=duplicates)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=DRAWN)
def test_shared_contents_equal_sets_and_loops(records: Pairs) -> None:
    task = evaluator(records)
    task.check()
    assert task.run({}) == pytest.approx(plain(records))


def test_images_with_the_same_caption_are_positives(caplog: Any) -> None:
    caplog.set_level("INFO")
    records: Pairs = [(0, ("cat",)), (1, ("cat",)), (2, ("cat",)), (3, ("dog",)), (3, ("emu",))]
    task = evaluator(records, devices=8)
    task.check()
    task.check()
    (record,) = caplog.records  # logged once
    assert "2 of 5 records share their image with others (1 different)" in record.getMessage()
    assert "3 of 5 records share their text with others (1 different)" in record.getMessage()
    found, shown = task.examples({})
    assert found == pytest.approx(plain(records))
    strict = evaluator(records, duplicates=False).run({})
    assert strict["text_to_image/R@1"] < found["text_to_image/R@1"]
    to_text, to_image = shown["directions"]
    examples = [x for way in (to_text, to_image) for g in way["groups"] for x in g["examples"]]
    held = {(which, text) for which, texts in records for text in texts}
    for example in examples:
        for answer in example["answers"]:
            both = (example["query"], answer)
            text = next(each["text"] for each in both if "text" in each)
            image = next(each for each in both if "text" not in each)
            assert answer["right"] == ((records[image["record"]][0], text) in held)
    worst = [x for g in to_image["groups"] if g["name"] != "spread" for x in g["examples"]]
    queries = [x["query"]["text"] for x in worst]
    assert len(queries) == len(set(queries))  # a caption is among the worst once


def test_duplicates_change_nothing_without_shared_contents() -> None:
    records: Pairs = [(0, ("cat", "cat")), (1, ("dog",)), (2, ("emu", "dog cat"))]
    task = evaluator(records)
    assert task.part.keys(task.context) is None
    assert task.run({}) == evaluator(records, duplicates=False).run({})


def test_group_column_replaces_shared_contents() -> None:
    records: Pairs = [(0, ("cat",)), (1, ("cat",)), (0, ("dog",))]
    task = evaluator(records, group="kind")
    assert task.part.keys(task.context) is None


def test_positives_have_an_id_or_a_key_in_common() -> None:
    further = scipy.sparse.csr_array(([1.0, 1.0], ([0, 3], [4, 0])), shape=(4, 5))
    found = Positives(np.array([7, 3, 9, 3]), np.array([3, 7, 3, 5, 7]), further)
    assert found.padded(slice(0, 4)).tolist() == [[1, 4], [0, 2], [-1, -1], [0, 2]]
    assert found.padded([2]).tolist() == [[-1]]
    assert found.mask(0).tolist() == [False, True, False, False, True]
    asked = np.array([[1, -1], [1, 2], [0, 4], [2, 3]])
    expected = [[True, False], [False, True], [False, False], [True, False]]
    assert contain(found, asked).tolist() == expected


def test_query_blocks_are_bounded_by_longest_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [1, 2, 9, 1, 1, 1, 0]
    query = np.repeat(np.arange(7), lengths).astype(np.int32)
    judged = Qrels(query, np.arange(len(query), dtype=np.int32), np.ones(len(query)))
    monkeypatch.setattr(qrels, "CELLS", 4)
    blocks = [block.tolist() for block in judged.blocks(np.arange(6))]
    assert blocks == [[0, 1], [2], [3, 4, 5]]
    monkeypatch.setattr(qrels, "QUERIES", 2)
    assert [len(block) for block in judged.blocks(np.arange(6))] == [2, 1, 2, 1]
