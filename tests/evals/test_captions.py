"""Crisscrossed Captions and nDCG by relevance: metrics against loops, rejected inputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import CaptionNdcg, CrisscrossedCaptions, recipe
from big_retrieval.config.checks import evals as checks
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals.rouge import RougeL, words
from tests.evals.bound import Bound
from tests.evals.captioned import evaluator, records, write_pairs
from tests.helpers import tiny

CAPTIONS = [["a red cat", "the cat, asleep"], ["a dog runs"], ["two dogs", "dogs run on", "run!"]]
SOURCE = records(CAPTIONS)
RNG = np.random.default_rng(0)
EMBEDDINGS = {"image": RNG.normal(size=(3, 4)), "text": RNG.normal(size=(6, 4))}
SCORES = (EMBEDDINGS["text"] @ EMBEDDINGS["image"].T).astype(np.float32)  # [6, 3]
OWNERS = np.array([0, 0, 1, 2, 2, 2])


def crisscrossed(path: str, **keys: Any) -> Bound:
    part = CrisscrossedCaptions(files=(path,), recall_at=(1, 2), **keys)
    return evaluator(part, SOURCE, **EMBEDDINGS)


def test_pairs_are_additional_positives(tmp_path: Path, said: list[str]) -> None:
    captions, images = (1002, 1003, 1000, 1001, 77, 1000), (2, 1, 1, 0, 0, 9)
    pairs = [*zip(captions, images, (3.0, 4.5, 2.9, 1.0, 5, 5), strict=True)]
    built = crisscrossed(write_pairs(tmp_path / "a.csv", pairs))
    built.check()
    assert "2 of 6 pairs have a score of 3 or more; 2 more are not in the data" in said[-1]
    found, shown = built.examples({})
    positives = OWNERS[:, None] == np.arange(3)  # [6, 3]
    positives[2, 2] = positives[3, 1] = True
    tables = {"text_to_image": (SCORES, positives), "image_to_text": (SCORES.T, positives.T)}
    for way, (scores, mask) in tables.items():
        order = np.argsort(-scores, axis=1)
        ranked = np.take_along_axis(mask, order, 1)
        for k in (1, 2):
            assert found[f"{way}/R@{k}"] == pytest.approx(ranked[:, :k].any(1).mean())
        precision = [row[: row.sum()].mean() for row in ranked]
        assert found[f"{way}/R-precision"] == pytest.approx(np.mean(precision))
    for direction in shown["directions"]:
        _, mask = tables[direction["name"]]
        for example in (x for group in direction["groups"] for x in group["examples"]):
            assert example["right_answers"] == mask[example["place"]].sum()


@pytest.mark.parametrize(
    ("content", "keys", "words"),
    [
        (None, {}, r"No file of pairs .*a\.csv"),
        ("caption1,caption2,agg_score\n", {}, r"a\.csv has the columns caption1, caption2, agg_"),
        ("", {}, r"a\.csv has the columns none"),
        ("caption,image,agg_score\nx:1,y.jpg,high\n", {}, "line 2: agg_score is 'high'"),
        ("caption,image,agg_score\nx:1\n", {}, "line 2: agg_score is ''"),
        ("caption,image,agg_score\nx:1,y.jpg,4\n", {}, "no pair is in coco"),
        ("caption,image,agg_score\n", {"caption_column": "filename"}, "'filename' is 'COCO.*'"),
    ],
)
def test_check_rejects_pairs(
    tmp_path: Path, content: str | None, keys: dict[str, str], words: str
) -> None:
    if content is not None:
        (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=words):
        crisscrossed(str(tmp_path / "a.csv"), **keys).check()


def ndcg(**keys: Any) -> Bound:
    return evaluator(CaptionNdcg(depth=2, **keys), SOURCE, **EMBEDDINGS)


def test_ndcg_by_rouge_equals_a_plain_loop() -> None:
    found = ndcg().run({})
    texts, values = [text for captions in CAPTIONS for text in captions], []
    for query, text in enumerate(texts):
        gains = [2 ** max(plain_rouge(other, text) for other in group) - 1 for group in CAPTIONS]
        order = sorted(range(3), key=lambda n: (-SCORES[query, n], gains[n]))
        ideal = sorted(gains, reverse=True)
        dcg = [a + b / np.log2(3) for a, b in ((gains[order[0]], gains[order[1]]), ideal[:2])]
        values.append(dcg[0] / dcg[1])
    assert found == {"rougeL/nDCG@2": pytest.approx(np.mean(values), rel=1e-6)}


def plain_rouge(a: str, b: str) -> float:
    rows = [[0] * (len(words(b)) + 1)]
    for left in words(a):
        row = [0]
        for column, right in enumerate(words(b)):
            above = rows[-1][column : column + 2]
            row.append(above[0] + 1 if left == right else max(row[-1], above[1]))
        rows.append(row)
    return 2 * rows[-1][-1] / max(1, len(words(a)) + len(words(b)))


def generated() -> tuple[list[list[str]], list[str]]:
    """Captions of images and texts, some with more words than an integer has bits, some empty."""
    rng, choices = np.random.default_rng(1), ["a", "b", "c", "Dog", "the,", "of", "in-side", "é"]

    def text(count: int) -> str:
        return " ".join(rng.choice(choices, count))

    captions = [[text(n) for n in rng.choice([0, 1, 5, 11, 70], 3)] for _ in range(6)]
    return captions, [text(n) for n in (0, 1, 11, 63, 64, 65, 129)]


@pytest.mark.parametrize("package", [False, True])
def test_rouge_equals_a_plain_loop_and_the_package(package: bool) -> None:
    score = plain_rouge
    if package:
        scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
        score = lambda a, b: scorer.score(a, b)["rougeL"].fmeasure  # noqa: E731
    captions, texts = generated()
    expected = [[max(score(c, text) for c in group) for group in captions] for text in texts]
    np.testing.assert_allclose(RougeL(captions).relevance(texts), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, r"Cannot read the relevance [^ ]*a\.npy: No such file"),
        (np.zeros((6, 4), np.float32), r"a\.npy is float32 \[6, 4\], but the data have 6 capti"),
        (np.zeros((6, 3), int), r"is int64 \[6, 3\], but the data have 6 captions and 3 images"),
        (b"x" * 40, r"a\.npy is float32 \[10\], but the data have 6 captions and 3 images"),
        (b"\x93NUMPY\x01\x00", r"Cannot read the relevance .*a\.npy"),
        (np.full((6, 3), -1, np.float32), "captions 0 to 5 is negative or not finite"),
    ],
)
def test_ndcg_rejects_relevance(tmp_path: Path, rows: Any, words: str) -> None:
    path = tmp_path / "a.npy"
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif rows is not None:
        np.save(path, rows)
    built = ndcg(relevance=(f"spice={path}",))
    with pytest.raises(UserError, match=words):
        checked_and_run(built)


def checked_and_run(built: Bound) -> dict[str, float]:
    built.check()
    return built.run({})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (CrisscrossedCaptions(), "config.evals.a.files is empty; name the files of pairs"),
        (
            CaptionNdcg(query="image", document="image"),
            "config.evals.a: exactly one of query='image'",
        ),
        (CaptionNdcg(query="image", document="text"), "'image'; it must be the field of the capt"),
        (CaptionNdcg(relevance=()), "config.evals.a.relevance is (); name at least one"),
        (CaptionNdcg(relevance=("spice",)), "config.evals.a.relevance has 'spice'; write 'rougeL'"),
        (CaptionNdcg(relevance=("rougeL", "rougeL")), "name at least one, and each once"),
    ],
)
def test_check_rejects_keys(part: Any, words: str) -> None:
    assert any(words in line for line in part.check(tiny(), "config.evals.a"))


def test_metrics_are_known_before_the_run() -> None:
    config = tiny(evals={
        "a": recipe.entry(CrisscrossedCaptions(), files=("a.csv",)),
        "b": recipe.entry(CaptionNdcg(), relevance=("rougeL", "spice=b.npy")),
    })  # fmt: skip
    assert {"crisscrossed/a/rsum", "crisscrossed/a/text_to_image/R-precision"} <= set(
        checks.metrics_of(config, "a")
    )
    assert checks.metrics_of(config, "b") == [
        "caption_ndcg/b/rougeL/nDCG@25", "caption_ndcg/b/spice/nDCG@25"
    ]  # fmt: skip


def test_karpathy_has_ids_that_pairs_name(tmp_path: Path) -> None:
    sentences = [{"raw": f"a cat {n}", "sentid": 626312 + n} for n in range(6)]
    image = {"filename": "COCO_val2014_000000059393.jpg", "split": "test", "sentences": sentences}
    (tmp_path / "coco.json").write_text(json.dumps({"images": [image]}))
    (tmp_path / image["filename"]).write_bytes(b"")
    source = make_source(configs.Karpathy(path=str(tmp_path / "coco.json"), split="test"))
    assert source.value(0, "filename") == image["filename"]  # type: ignore[attr-defined]
    assert source.value(0, "sentids") == [626312 + n for n in range(5)]  # type: ignore[attr-defined]
