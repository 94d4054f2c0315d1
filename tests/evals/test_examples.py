"""Examples against plain loops: queries, answers and files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import Damaged
from big_retrieval.evals.class_scores import best_others
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import ranks
from big_retrieval.evals.zeroshot import BEST, ZeroShotResult
from big_retrieval.report.example_files import retrieval, selection
from big_retrieval.report.example_files.folder import ExampleFolder
from big_retrieval.report.example_files.selection import best_first, rounded, worst
from big_retrieval.report.example_files.zeroshot import predictions, zeroshot_content
from big_retrieval.report.thumbnails import (
    MOST_CHARACTERS,
    SIDE,
    data_uri,
    show_item,
    shrink,
    unreadable,
)
from big_retrieval.runtime.extras import Extras
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import PresetEncoder
from tests.evals.test_retrieval import OWNERS, RECORDS, SPECS, TEXTS, evaluator, noisy

N = 4
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])


class Counting(SceneRecords):
    """Scenes that count reads of whole records, with their pictures."""

    reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        Counting.reads += 1
        return super().__getitem__(index)


SOURCE = Counting("test", size=16, count=RECORDS)
CONTEXT = EvaluatorContext("test", SOURCE, SPECS, TOPOLOGIES["euclidean"], None)  # type: ignore


@settings(deadline=None)
@given(
    values=st.lists(VALUES, max_size=20),
    owners=st.lists(st.integers(0, 4), min_size=20, max_size=20),
    count=st.integers(0, 5),
)
def test_worst_has_the_largest_values_one_per_owner(
    values: list[float], owners: list[int], count: int
) -> None:
    expected: list[int] = []
    for _, index in sorted((-v, i) for i, v in enumerate(values) if np.isfinite(v)):
        if owners[index] not in {owners[i] for i in expected} and len(expected) < count:
            expected.append(index)
    assert worst(np.array(values), np.array(owners[: len(values)]), count).tolist() == expected


@settings(deadline=None)
@given(
    scores=st.lists(VALUES, min_size=1, max_size=12),
    positives=st.lists(st.booleans(), min_size=12, max_size=12),
    count=st.integers(1, 6),
)
def test_best_first_has_the_order_of_ranks(
    scores: list[float], positives: list[bool], count: int
) -> None:
    def key(index: int) -> tuple[float, bool, int]:
        score, is_positive = scores[index], positives[index]
        score = (-np.inf if is_positive else np.inf) if np.isnan(score) else score
        return -score, is_positive, index

    expected = sorted(range(len(scores)), key=key)[:count]
    mask = np.array(positives[: len(scores)])
    assert best_first(np.array(scores), mask, count).tolist() == expected


@pytest.mark.parametrize("devices", [1, 8])
def test_select_direction_equals_plain_loops(devices: int) -> None:
    def side(field: str, embeddings: np.ndarray, owners: np.ndarray) -> FieldItems:
        items = np.stack([owners, np.zeros_like(owners)], axis=1)
        return FieldItems(field, SPECS[field], SOURCE, np.float32(embeddings), owners, items)

    rng = np.random.default_rng(1)
    q, d = 40, 23
    a, b = rng.normal(size=(q, 1, N)), rng.normal(size=(d, 1, N))
    ids, owners = np.arange(q) % 8, np.arange(d) % 8
    first, second = side("text", a, ids), side("image", b, owners)
    options: dict[str, Any] = {"encoder": PresetEncoder(devices), "chunk": 16}
    options["score"] = TOPOLOGIES["euclidean"].score
    best = ranks(first.embeddings, second.embeddings, Positives(ids, owners), **options).best
    selected = retrieval.select_direction(first, second, best, names=(), **options)

    scores = -np.linalg.norm(a[:, None, 0] - b[None, :, 0], axis=-1)  # [Q, D]
    failed = [
        i for i in range(q) if scores[i, owners != ids[i]].max() > scores[i, owners == ids[i]].max()
    ]
    deepest: list[int] = []
    for i in sorted(failed, key=lambda i: (-best[i], i)):
        if len(deepest) < selection.DEEPEST and ids[i] not in {ids[j] for j in deepest}:
            deepest.append(i)
    groups = {name: queries.tolist() for name, _, queries in selected.groups}
    assert groups == {"spread": [0, 9, 19, 29, 39], "deepest": deepest}
    for query, row in selected.scores.items():
        np.testing.assert_allclose(row, scores[query], rtol=1e-4)
    assert sorted(selected.scores) == sorted({q for group in groups.values() for q in group})


@pytest.mark.parametrize("devices", [1, 8])
def test_examples_of_retrieval_agree_with_its_metrics(devices: int) -> None:
    encoder = noisy(0.7, devices)
    metrics, shown = evaluator(encoder, SOURCE).examples({})
    assert encoder.encoded == {"image": [RECORDS], "text": [RECORDS * TEXTS]}
    assert metrics == evaluator(noisy(0.7, devices), SOURCE).run({})
    images, texts = (encoder.tables[name][:, 0] for name in ("image", "text"))
    table = -np.linalg.norm(images[:, None] - texts[None], axis=-1)  # [9, 45]
    records = np.arange(RECORDS)
    for direction in shown["directions"]:
        to_text = direction["name"] == "image_to_text"
        scores, ids, owners = (table, records, OWNERS) if to_text else (table.T, OWNERS, records)
        assert (direction["queries"], direction["answers"]) == scores.shape
        assert all(group["examples"] for group in direction["groups"])
        for example in (x for group in direction["groups"] for x in group["examples"]):
            row, is_positive = scores[example["place"]], owners == ids[example["place"]]
            order = np.argsort(-row, kind="stable")
            assert example["rank"] == 1 + (row[~is_positive] >= row[is_positive].max()).sum()
            assert example["right_answers"] == is_positive.sum()
            for answer, index in zip(example["answers"], order, strict=False):
                assert answer["score"] == pytest.approx(row[index], abs=1e-4)
                assert answer["right"] == is_positive[index]
                assert answer["record"] == owners[index]
                assert ("text" in answer) == to_text
                if to_text:
                    captions = SOURCE[int(owners[index])]["captions"]
                    assert answer["text"] == captions[index % TEXTS]
                else:
                    assert answer["picture"].startswith("data:image/")
            assert ("right" in example) == (not is_positive[order[:5]].any())
            if "right" in example:
                assert example["right"]["score"] == pytest.approx(row[is_positive].max(), abs=1e-4)
    assert [d["name"] for d in shown["directions"]] == ["image_to_text", "text_to_image"]
    json.dumps(shown, allow_nan=False)


def test_show_selects_queries_by_name(tmp_path: Path, said: list[str]) -> None:
    task = evaluator(noisy(0.7), SOURCE)
    folder = ExampleFolder(tmp_path, 1, Extras(), ("7", "4#2", "2", "no"))
    task.run({}, show=partial(folder, "retrieval/x", task.context))
    shown = json.loads((tmp_path / "examples" / "retrieval-x.json").read_text())
    groups = {d["name"]: d["groups"] for d in shown["directions"]}
    places = {name: [x["place"] for x in found[0]["examples"]] for name, found in groups.items()}
    assert places == {"image_to_text": [7, 2], "text_to_image": [4 * TEXTS + 2]}
    assert [group["name"] for group in groups["image_to_text"]][:2] == ["chosen", "spread"]
    folder.warn_of_unknown()
    assert "1 of 4 names, such as 'no'" in said[-1]


def test_perfect_model_has_no_hard_queries() -> None:
    _, shown = evaluator(noisy(0.0), SOURCE).examples({})
    for direction in shown["directions"]:
        assert direction["failed"] == 0
        assert [len(group["examples"]) for group in direction["groups"]] == [5, 0]


def test_nan_scores_are_shown_as_none() -> None:
    _, shown = evaluator(noisy(np.nan), SOURCE).examples({})
    for direction in shown["directions"]:
        answers = [a for g in direction["groups"] for e in g["examples"] for a in e["answers"]]
        assert {answer["score"] for answer in answers} == {None}
        assert not any(answer["right"] for answer in answers)
    json.dumps(shown, allow_nan=False)


def test_first_process_alone_reads_and_writes_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = evaluator(noisy(0.7), SOURCE)
    folder = ExampleFolder(tmp_path, 7, Extras())
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    reads = []
    for show in (None, partial(folder, "retrieval/x", task.context)):
        Counting.reads = 0
        task.run({}, show=show)
        reads.append(Counting.reads)
    assert reads[0] == reads[1]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    content = {"text": "\u202e\ud800é"}
    folder("retrieval/a b", CONTEXT, content)
    written = json.loads((tmp_path / "examples" / "retrieval-a-b.json").read_text())
    assert written == {"evaluator": "retrieval/a b", "step": 7, "type": "retrieval", **content}


def test_unwritable_folder_is_a_warning(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "examples").write_text("a file")
    ExampleFolder(tmp_path, 1, Extras())("retrieval/x", CONTEXT, {})
    assert len(said) == 1
    assert "examples/retrieval-x.json is not written" in said[0]


def test_show_item_of_unreadable_records() -> None:
    class Broken(SceneRecords):
        def __getitem__(self, index: int) -> dict[str, Any]:
            raise Damaged(f"record {index}", "the image is cut")

        def texts(self, index: int, column: str) -> tuple[str, ...]:
            raise Damaged(f"record {index}", "the text is missing")

    broken = Broken("test", size=16, count=3)
    item = show_item(broken, SPECS["image"], 1, 0)
    assert item == {"record": 1, "picture": data_uri(unreadable())}
    assert show_item(broken, SPECS["text"], 1, 0) == {"record": 1, "text": "cannot be read"}


@pytest.mark.parametrize("shape", [(1, 1), (3, 4000), (4000, 2), (500, 375), (16, 16)])
def test_thumbnails_are_small_and_uncropped(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    small = shrink(rng.integers(0, 256, (*shape, 3)).astype(np.uint8))
    assert max(small.size) == min(SIDE, max(shape))
    assert min(small.size) >= 1
    if min(shape) * SIDE >= max(shape):
        assert small.size[0] / small.size[1] == pytest.approx(shape[1] / shape[0], rel=0.02)
    assert len(data_uri(small)) < 12_000


def test_long_texts_are_cut() -> None:
    class Long(SceneRecords):
        def texts(self, index: int, column: str) -> tuple[str, ...]:
            return ("x" * 10_000, "y" * MOST_CHARACTERS)

    long = Long("test", size=16, count=1)
    item = show_item(long, SPECS["text"], 0, 0)
    assert item == {"record": 0, "text": "x" * MOST_CHARACTERS, "characters": 10_000}
    assert "characters" not in show_item(long, SPECS["text"], 0, 1)


@settings(deadline=None)
@given(
    scores=st.lists(st.lists(VALUES, min_size=7, max_size=7), min_size=1, max_size=12),
    labels=st.lists(st.integers(0, 6), min_size=12, max_size=12),
)
def test_zeroshot_content_equals_plain_loop(scores: list[list[float]], labels: list[int]) -> None:
    table, label = np.array(scores), np.array(labels[: len(scores)])
    label_scores = np.take_along_axis(table, label[:, None], axis=1)
    rank = np.sum(~(table < label_scores), axis=1)
    names, records = tuple("abcdefg"), np.arange(len(label)) % RECORDS
    best = best_others(table, label, BEST)
    result = ZeroShotResult("image", names, records, label, rank, label_scores[:, 0], *best)
    pairs: dict[tuple[int, int], int] = {}
    rows = zip(scores, label, rank, predictions(result), strict=True)
    for row, true, place, predicted in rows:
        others = {i: np.inf if np.isnan(s) else s for i, s in enumerate(row) if i != true}
        assert (predicted == true) == (place <= 1)
        if place > 1:
            assert others[int(predicted)] == max(others.values())
            pairs[int(true), int(predicted)] = pairs.get((int(true), int(predicted)), 0) + 1
    content = zeroshot_content(result, CONTEXT)
    assert {(a, b): n for a, b, n in content["confusions"]} == pairs
    assert [n for *_, n in content["confusions"]] == sorted(pairs.values(), reverse=True)
    assert content["failed"] == sum(pairs.values()) == len(label) - sum(content["right_of_class"])
    assert content["images_of_class"] == [int((label == i).sum()) for i in range(7)]
    examples = [example for group in content["groups"] for example in group["examples"]]
    indices = [example["place"] for example in examples]
    assert len(set(indices)) == len(indices)
    assert all(rank[i] > 1 for i in indices)
    for example, index in zip(examples, indices, strict=True):
        top = best_first(table[index], np.arange(7) == label[index], BEST)
        answers = [(x["text"], x["score"]) for x in example["answers"]]
        assert answers == [(names[i], rounded(float(table[index, i]))) for i in top]
    json.dumps(content, allow_nan=False)
