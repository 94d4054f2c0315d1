"""Records that share texts or images answer each other's queries; against sets and loops."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tradeoff_systems import recall_scorer
from big_retrieval import config as configs
from big_retrieval.data.duplicates import FieldContents
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.shared_content import fill_missing, keys_of
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.test_groups import SPECS, TOKENIZER, WORDS, Listed, Seen, embedding

Pairs = list[tuple[int, tuple[str, ...]]]  # which picture, captions
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
    """Records at hand; several may have the same picture, which is said without opening it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        which, captions = self.records[index]
        return {"image": self.cell(index, "image"), "captions": captions, "kind": which}

    def cell(self, index: int, column: str) -> np.ndarray:
        return np.full((4, 4, 3), self.records[index][0], np.uint8)


def contents(held: list[list[int]]) -> tuple[FieldContents, list[list[int]]]:
    """Values of records as the package and as lists have them, numbered by first occurrence."""
    numbers: dict[int, int] = {}
    lists = [[numbers.setdefault(each, len(numbers)) for each in values] for values in held]
    starts = np.cumsum([0, *map(len, lists)])
    return FieldContents(starts, np.array([v for values in lists for v in values])), lists


@settings(max_examples=80, deadline=None)
@given(first=HELD, second=HELD)
def test_two_values_answer_each_other_where_a_record_holds_both(
    first: list[list[int]], second: list[list[int]]
) -> None:
    (a, held_a), (b, held_b) = contents(first), contents(second)
    keys = keys_of(a, b)
    items = [
        np.array([(r, i) for r, values in enumerate(held) for i in range(len(values))])
        for held in (held_a, held_b)
    ]
    (x, of_x), (y, of_y) = (each.of(item) for each, item in zip(keys, items, strict=True))
    assert of_x.tolist() == [v for values in held_a for v in values]
    assert of_y.tolist() == [v for values in held_b for v in values]
    right = np.stack([Positives(x, y).mask(i) for i in range(len(of_x))])
    assert (right == np.stack([Positives(y, x).mask(j) for j in range(len(of_y))]).T).all()
    for i, u in enumerate(of_x):
        for j, w in enumerate(of_y):
            together = any(u in p and w in q for p, q in zip(held_a, held_b, strict=True))
            assert right[i, j] == together


def test_records_without_a_value_are_alone() -> None:
    found = fill_missing(FieldContents(np.array([0, 2, 2, 3, 3]), np.array([0, 1, 1])))
    assert found.starts.tolist() == [0, 2, 3, 4, 5]
    assert found.values.tolist() == [0, 1, 2, 1, 3]
    nothing = FieldContents(np.zeros(4, int), np.zeros(0, int))
    assert fill_missing(nothing).values.tolist() == [0, 1, 2]


def plain(records: Pairs) -> dict[str, float]:
    """The numbers by sets and loops: right is what some record holds together."""
    held = {(which, text) for which, texts in records for text in texts}
    images = [(which, embedding(np.array([[which]]))[0, 0]) for which, _ in records]
    texts = [
        (text, embedding(TOKENIZER.encode([text], 6)[0].astype(np.int64))[0, 0])
        for _, captions in records
        for text in captions
    ]
    out = {}
    for way, queries, answers in (
        ("image_to_text", images, texts), ("text_to_image", texts, images)
    ):  # fmt: skip
        places, precisions, reciprocals, ndcgs = [], [], [], []
        for asked, place in queries:
            pairs = [(a, asked) if way == "text_to_image" else (asked, a) for a, _ in answers]
            scores = [
                (-round(float(-np.linalg.norm(place - p)), 5), pair in held)
                for pair, (_, p) in zip(pairs, answers, strict=True)
            ]
            best = min(score for score, right in scores if right)
            places.append(1 + sum(not right and score <= best for score, right in scores))
            reciprocals.append(1 / places[-1] if places[-1] <= 10 else 0)
            keys, count = sorted(scores), sum(right for _, right in scores)
            precisions.append(sum(right for _, right in keys[:count]) / count)
            gains = [right / np.log2(rank) for rank, (_, right) in enumerate(keys[:10], 2)]
            ndcgs.append(sum(gains) / sum(1 / np.log2(np.arange(2, min(count, 10) + 2))))
        out |= {f"{way}/R@{k}": float(np.mean([p <= k for p in places])) for k in (1, 2)}
        out[f"{way}/R-precision"] = float(np.mean(precisions))
        out[f"{way}/MRR@10"] = float(np.mean(reciprocals))
        out[f"{way}/nDCG@10"] = float(np.mean(ndcgs))
        out[f"{way}/mean_rank"] = float(np.mean(places))
        out[f"{way}/median_rank"] = float(np.floor(np.median(places)))
    recalls = [value for name, value in out.items() if "/R@" in name]
    return out | {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / 4}


def evaluator(records: Pairs, devices: int = 1, duplicates: bool = True, group: str = "") -> Bound:
    part = configs.Retrieval(recall_at=(1, 2), group=group)
    rest: Mapping[str, Any] = {"duplicates": duplicates}
    topology = TOPOLOGIES["euclidean"]
    return bound(part, Pictures(records), SPECS, topology, Seen(devices), **rest)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=DRAWN)
def test_numbers_are_those_of_sets_and_loops(records: Pairs) -> None:
    task = evaluator(records)
    task.check()
    assert task.run({}) == pytest.approx(plain(records))


def test_drawings_of_one_thing_are_right_for_its_caption(caplog: Any) -> None:
    """Without it the model that knows everything finds a third; with it, and in the examples,
    no caption is wrong for an image that has the same one."""
    caplog.set_level("INFO")
    records: Pairs = [(0, ("cat",)), (1, ("cat",)), (2, ("cat",)), (3, ("dog",)), (3, ("emu",))]
    task = evaluator(records, devices=8)
    task.check()
    task.check()
    (told,) = caplog.records  # once
    assert "2 of 5 records share their image with others (1 different)" in told.getMessage()
    assert "3 of 5 records share their text with others (1 different)" in told.getMessage()
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
    asked = [x["query"]["text"] for x in worst]
    assert len(asked) == len(set(asked))  # a caption is among the worst once


def test_without_anything_shared_nothing_changes() -> None:
    records: Pairs = [(0, ("cat", "cat")), (1, ("dog",)), (2, ("emu", "dog cat"))]
    task = evaluator(records)
    assert task.part.keys(task.context) is None
    assert task.run({}) == evaluator(records, duplicates=False).run({})


def test_a_named_group_comes_first() -> None:
    records: Pairs = [(0, ("cat",)), (1, ("cat",)), (0, ("dog",))]
    task = evaluator(records, group="kind")
    assert task.part.keys(task.context) is None


def test_a_search_finds_what_the_evaluator_calls_right() -> None:
    (a, _), (b, _) = contents([[0], [0], [1]]), contents([[0], [1], [2]])
    queries, documents = (keys.keys[keys.contents.values] for keys in keys_of(a, b))
    found = np.array([[1, 2], [0, 2], [0, 1]])
    score = recall_scorer((1, 2), Positives(queries, documents))
    scores = np.array([[2.0, 1.0]] * 3)
    assert score(found, scores) == {"R@1": pytest.approx(2 / 3), "R@2": pytest.approx(2 / 3)}
    alone = Positives(np.arange(3), np.arange(3))
    assert recall_scorer((1,), alone)(found, scores) == {"R@1": 0.0}
