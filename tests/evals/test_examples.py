"""Examples against plain loops: which queries, which answers, what is written and read."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged
from big_retrieval.evals.class_scores import best_others
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import ranks
from big_retrieval.evals.zeroshot import BEST, ZeroShotResult
from big_retrieval.inference.encoder import Encoder
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
from tests.evals.bound import bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

RECORDS, TEXTS, N = 9, 5, 4
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
SPECS = {
    "image": image_reader("image", size=16),
    "text": text_reader("captions", length=8, tokenizer=TOKENIZER),
}


class Counting(SceneRecords):
    """Scenes that count how often a whole record, with its picture, is read."""

    reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        Counting.reads += 1
        return super().__getitem__(index)


SOURCE = Counting("test", size=16, count=RECORDS)
CONTEXT = EvaluatorContext("test", SOURCE, SPECS, TOPOLOGIES["euclidean"], None)  # type: ignore


class Preset(PresetEncoder):
    """An encoder whose embeddings are noise around those of their records; reads no batch."""

    def __init__(self, devices: int = 1, noise: float = 0.7) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        self.noise, self.asked = noise, 0
        self.made: dict[str, np.ndarray] = {}

    def gradcam_obstacle(self, text: str, image: str) -> str:
        return "there is no model"

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        self.asked += 1
        each = TEXTS if field == "text" else 1
        records = np.repeat(np.arange(RECORDS), each)
        rng = np.random.default_rng(each)
        embeddings = np.eye(RECORDS)[records] + self.noise * rng.normal(
            size=(len(records), RECORDS)
        )
        self.made[field] = embeddings.astype(np.float32)[:, None]  # [n, 1, N]
        return self.made[field], records


def side(field: str, embeddings: np.ndarray, owners: np.ndarray) -> FieldItems:
    """A side of which nothing is read."""
    items = np.stack([owners, np.zeros_like(owners)], axis=1)
    return FieldItems(field, SPECS[field], SOURCE, embeddings.astype(np.float32), owners, items)


# ---- Which queries


@given(
    values=st.lists(VALUES, max_size=20),
    owners=st.lists(st.integers(0, 4), min_size=20, max_size=20),
    number=st.integers(0, 5),
)
def test_the_worst_are_the_largest_numbers_one_per_owner(
    values: list[float], owners: list[int], number: int
) -> None:
    left = [(-v, i) for i, v in enumerate(values) if np.isfinite(v)]
    expected: list[int] = []
    for _, place in sorted(left):
        if owners[place] not in {owners[i] for i in expected} and len(expected) < number:
            expected.append(place)
    found = worst(np.array(values), np.array(owners[: len(values)]), number)
    assert found.tolist() == expected


# ---- Which answers


@settings(deadline=None)
@given(
    scores=st.lists(VALUES, min_size=1, max_size=12),
    right=st.lists(st.booleans(), min_size=12, max_size=12),
    number=st.integers(1, 6),
)
def test_answers_stand_in_the_order_that_ranks_count_in(
    scores: list[float], right: list[bool], number: int
) -> None:
    def key(place: int) -> tuple[float, bool, int]:
        score = scores[place]
        shown = (-np.inf if right[place] else np.inf) if np.isnan(score) else score
        return -shown, right[place], place

    expected = sorted(range(len(scores)), key=key)[:number]
    marks = np.array(right[: len(scores)])
    assert best_first(np.array(scores), marks, number).tolist() == expected


@pytest.mark.parametrize("devices", [1, 8])
def test_choices_are_those_of_plain_loops(devices: int) -> None:
    rng = np.random.default_rng(1)
    q, d = 40, 23
    a, b = rng.normal(size=(q, 1, N)), rng.normal(size=(d, 1, N))
    ids, owners = np.arange(q) % 8, np.arange(d) % 8
    first, second = side("text", a, ids), side("image", b, owners)
    how: dict[str, Any] = {
        "score": TOPOLOGIES["euclidean"].score, "encoder": Preset(devices), "chunk": 16
    }  # fmt: skip
    found = ranks(first.embeddings, second.embeddings, Positives(ids, owners), **how).best
    chosen = retrieval.select_direction(first, second, found, names=(), **how)

    scores = -np.linalg.norm(a[:, None, 0] - b[None, :, 0], axis=-1)  # [Q, D]
    failed = [
        i for i in range(q) if scores[i, owners != ids[i]].max() > scores[i, owners == ids[i]].max()
    ]
    deepest: list[int] = []
    for i in sorted(failed, key=lambda i: (-found[i], i)):
        if len(deepest) < selection.DEEPEST and ids[i] not in {ids[j] for j in deepest}:
            deepest.append(i)
    groups = {name: queries.tolist() for name, _, queries in chosen.groups}
    assert groups == {"spread": [0, 9, 19, 29, 39], "deepest": deepest}
    for query, row in chosen.scores.items():
        np.testing.assert_allclose(row, scores[query], rtol=1e-4)
    assert sorted(chosen.scores) == sorted({q for group in groups.values() for q in group})


# ---- What an evaluator shows


def run(encoder: Encoder, **changes: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """The numbers and examples of a retrieval evaluator."""
    task = bound(configs.Retrieval(**changes), SOURCE, SPECS, TOPOLOGIES["euclidean"], encoder)
    return task.examples({})


@pytest.mark.parametrize("devices", [1, 8])
def test_examples_of_retrieval_agree_with_its_numbers(devices: int) -> None:
    encoder = Preset(devices)
    numbers, shown = run(encoder)
    assert encoder.asked == 2  # each field once
    plain = bound(configs.Retrieval(), SOURCE, SPECS, TOPOLOGIES["euclidean"], Preset(devices)).run(
        {}
    )
    assert numbers == plain
    images, texts = (encoder.made[name][:, 0] for name in ("image", "text"))
    table = -np.linalg.norm(images[:, None] - texts[None], axis=-1)  # [9, 45]
    owners = np.repeat(np.arange(RECORDS), TEXTS)
    for direction in shown["directions"]:
        forward = direction["name"] == "image_to_text"
        scores, ids = (table, np.arange(RECORDS)) if forward else (table.T, owners)
        theirs = owners if forward else np.arange(RECORDS)
        size = (RECORDS, RECORDS * TEXTS)
        assert (direction["queries"], direction["answers"]) == (size if forward else size[::-1])
        for group in direction["groups"]:
            assert group["examples"]
            for example in group["examples"]:
                row, right = scores[example["place"]], theirs == ids[example["place"]]
                ranked = np.argsort(-row, kind="stable")
                assert example["rank"] == 1 + int((row[~right] >= row[right].max()).sum())
                assert example["right_answers"] == int(right.sum())
                for answer, place in zip(example["answers"], ranked, strict=False):
                    assert answer["score"] == pytest.approx(row[place], abs=1e-4)
                    assert answer["right"] == right[place]
                    assert answer["record"] == theirs[place]
                    assert ("text" in answer) == forward
                    if forward:
                        assert (
                            answer["text"] == SOURCE[int(theirs[place])]["captions"][place % TEXTS]
                        )
                    else:
                        assert answer["picture"].startswith("data:image/")
                assert ("right" in example) == (not right[ranked[:5]].any())
                if "right" in example:
                    assert example["right"]["score"] == pytest.approx(row[right].max(), abs=1e-4)
    assert {d["name"] for d in shown["directions"]} == {"image_to_text", "text_to_image"}
    json.dumps(shown, allow_nan=False)


def test_queries_are_shown_by_their_names() -> None:
    task = bound(configs.Retrieval(), SOURCE, SPECS, TOPOLOGIES["euclidean"], Preset())
    _, shown = task.examples({}, ("7", "4#2", "2", "no"))
    groups = {d["name"]: d["groups"] for d in shown["directions"]}
    places = {name: [x["place"] for x in found[0]["examples"]] for name, found in groups.items()}
    assert places == {"image_to_text": [7, 2], "text_to_image": [4 * TEXTS + 2]}
    assert [group["name"] for group in groups["image_to_text"]][:2] == ["chosen", "spread"]


def test_a_perfect_model_has_no_hard_queries() -> None:
    _, shown = run(Preset(noise=0.0))
    for direction in shown["directions"]:
        assert direction["failed"] == 0
        assert [len(group["examples"]) for group in direction["groups"]] == [5, 0]


def test_scores_without_a_number_are_shown_as_such() -> None:
    _, shown = run(Preset(noise=np.nan))
    for direction in shown["directions"]:
        answers = [a for g in direction["groups"] for e in g["examples"] for a in e["answers"]]
        assert {answer["score"] for answer in answers} == {None}
        assert not any(answer["right"] for answer in answers)
    json.dumps(shown, allow_nan=False)


def test_without_a_taker_no_picture_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counting.reads = 0
    task = bound(configs.Retrieval(), SOURCE, SPECS, TOPOLOGIES["euclidean"], Preset())
    task.run({})
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    folder = ExampleFolder(tmp_path, 1, Extras())
    task.run({}, show=partial(folder, "retrieval/x", task.context))
    assert Counting.reads == 0
    assert list(tmp_path.iterdir()) == []


# ---- Files


def test_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"text": "\u202e\ud800é"}
    folder = ExampleFolder(tmp_path, 7, Extras())
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    folder("retrieval/a b", CONTEXT, content)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    folder("retrieval/a b", CONTEXT, content)
    found = json.loads((tmp_path / "examples" / "retrieval-a-b.json").read_text())
    assert found == {"evaluator": "retrieval/a b", "step": 7, "type": "retrieval", **content}


def test_a_folder_that_cannot_be_written_is_said_and_ends_nothing(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "examples").write_text("a file")
    ExampleFolder(tmp_path, 1, Extras())("retrieval/x", CONTEXT, {})
    assert len(said) == 1
    assert "examples/retrieval-x.json is not written" in said[0]


def test_unknown_names_of_queries_are_counted(tmp_path: Path, said: list[str]) -> None:
    task = bound(configs.Retrieval(), SOURCE, SPECS, TOPOLOGIES["euclidean"], Preset())
    folder = ExampleFolder(tmp_path, 1, Extras(), ("7", "no"))
    task.run({}, show=partial(folder, "retrieval/x", task.context))
    folder.warn_of_unknown()
    assert "1 of 2 names" in said[-1]
    assert "'no'" in said[-1]


# ---- What is seen of a record


class Broken(SceneRecords):
    """Its pictures and texts cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise Damaged(f"record {index}", "the image is cut")

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        raise Damaged(f"record {index}", "the text is missing")


def test_what_cannot_be_read_is_a_grey_tile_and_a_word() -> None:
    broken = Broken("test", size=16, count=3)
    seen = show_item(broken, SPECS["image"], 1, 0)
    assert seen.keys() == {"record", "picture"}
    assert seen["picture"] == data_uri(unreadable())
    assert show_item(broken, SPECS["text"], 1, 0) == {"record": 1, "text": "cannot be read"}


@pytest.mark.parametrize("shape", [(1, 1), (3, 4000), (4000, 2), (500, 375), (16, 16)])
def test_thumbnails_are_small_and_whole(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    small = shrink(rng.integers(0, 256, (*shape, 3)).astype(np.uint8))
    assert max(small.size) == min(SIDE, max(shape))
    assert min(small.size) >= 1
    if min(shape) * SIDE >= max(shape):
        assert small.size[0] / small.size[1] == pytest.approx(shape[1] / shape[0], rel=0.02)
    assert len(data_uri(small)) < 12_000


def test_long_texts_are_cut_and_their_length_is_kept() -> None:
    class Long(SceneRecords):
        def texts(self, index: int, column: str) -> tuple[str, ...]:
            return ("x" * 10_000, "y" * MOST_CHARACTERS)

    long = Long("test", size=16, count=1)
    seen = show_item(long, SPECS["text"], 0, 0)
    assert seen == {"record": 0, "text": "x" * MOST_CHARACTERS, "characters": 10_000}
    assert "characters" not in show_item(long, SPECS["text"], 0, 1)


# ---- Zero-shot


@settings(deadline=None)
@given(
    scores=st.lists(st.lists(VALUES, min_size=7, max_size=7), min_size=1, max_size=12),
    labels=st.lists(st.integers(0, 6), min_size=12, max_size=12),
)
def test_confusions_are_those_of_a_plain_loop(scores: list[list[float]], labels: list[int]) -> None:
    table, right = np.array(scores), np.array(labels[: len(scores)])
    own = np.take_along_axis(table, right[:, None], axis=1)
    place = np.sum(~(table < own), axis=1)
    names, records = tuple("abcdefg"), np.arange(len(right)) % RECORDS
    others, of_others = best_others(table, right, BEST)
    result = ZeroShotResult("image", names, records, right, place, own[:, 0], others, of_others)
    taken = predictions(result)
    pairs: dict[tuple[int, int], int] = {}
    for row, label, rank, answer in zip(scores, right, place, taken, strict=True):
        others = {i: np.inf if np.isnan(s) else s for i, s in enumerate(row) if i != label}
        if rank <= 1:
            assert answer == label
            continue
        assert answer != label
        assert others[int(answer)] == max(others.values())
        pairs[int(label), int(answer)] = pairs.get((int(label), int(answer)), 0) + 1
    found = zeroshot_content(result, CONTEXT)
    assert {(a, b): n for a, b, n in found["confusions"]} == pairs
    assert [n for *_, n in found["confusions"]] == sorted(pairs.values(), reverse=True)
    assert found["failed"] == sum(pairs.values()) == len(right) - sum(found["right_of_class"])
    assert found["images_of_class"] == [int((right == i).sum()) for i in range(7)]
    shown = [example["place"] for group in found["groups"] for example in group["examples"]]
    assert len(set(shown)) == len(shown)
    assert all(place[i] > 1 for i in shown)
    for example in (x for group in found["groups"] for x in group["examples"]):
        index = example["place"]
        top = best_first(table[index], np.arange(7) == right[index], BEST)
        assert [x["text"] for x in example["answers"]] == [names[i] for i in top]
        scores = [x["score"] for x in example["answers"]]
        assert scores == [rounded(float(table[index, i])) for i in top]
    json.dumps(found, allow_nan=False)
