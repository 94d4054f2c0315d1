"""Crisscrossed Captions and nDCG by relevance: what is counted, and what does not fit."""

import importlib.util
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


def test_pairs_are_right_besides_the_original_ones(tmp_path: Path, said: list[str]) -> None:
    pairs = [
        (1002, 2, 3.0),
        (1003, 1, 4.5),
        (1000, 1, 2.9),
        (1001, 0, 1.0),
        (77, 0, 5),
        (1000, 9, 5),
    ]
    built = crisscrossed(write_pairs(tmp_path / "a.csv", pairs))
    built.check()
    assert "2 of 6 pairs have a score of 3 or more; 2 others name what the data lack" in said[-1]
    found, shown = built.examples({})
    right = OWNERS[:, None] == np.arange(3)  # [6, 3]
    right[2, 2] = right[3, 1] = True
    for way, scores, mask in (
        ("text_to_image", SCORES, right), ("image_to_text", SCORES.T, right.T)
    ):  # fmt: skip
        order = np.argsort(-scores, axis=1)
        ranked = np.take_along_axis(mask, order, 1)
        for k in (1, 2):
            assert found[f"{way}/R@{k}"] == pytest.approx(ranked[:, :k].any(1).mean())
        precision = [row[: row.sum()].mean() for row in ranked]
        assert found[f"{way}/R-precision"] == pytest.approx(np.mean(precision))
    for direction in shown["directions"]:
        by = right.T if direction["query"] == "image" else right
        for example in (each for group in direction["groups"] for each in group["examples"]):
            assert example["right_answers"] == by[example["place"]].sum()


@pytest.mark.parametrize(
    ("content", "keys", "words"),
    [
        (None, {}, r"the file of pairs .*a\.csv is not on this machine: name those of"),
        ("caption1,caption2,agg_score\n", {}, r"a\.csv has the columns caption1, caption2, agg_"),
        ("", {}, r"a\.csv has the columns none; files of pairs of captions and images have"),
        ("caption,image,agg_score\nx:1,y.jpg,high\n", {}, "line 2: agg_score is 'high', not a"),
        ("caption,image,agg_score\nx:1\n", {}, "line 2: agg_score is '', not a number"),
        ("caption,image,agg_score\nx:1,y.jpg,4\n", {}, "no pair is in coco, such as the captio"),
        ("caption,image,agg_score\n", {"caption_column": "filename"},
         "'filename' is 'COCO.*'; it must hold an id for each of the 2 captions: name their"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_fit(
    tmp_path: Path, content: str | None, keys: dict[str, str], words: str
) -> None:
    if content is not None:
        (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=words):
        crisscrossed(str(tmp_path / "a.csv"), **keys).check()


def ndcg(**keys: Any) -> Bound:
    return evaluator(CaptionNdcg(depth=2, **keys), SOURCE, **EMBEDDINGS)


def test_relevance_by_rouge_is_that_of_a_plain_loop() -> None:
    found = ndcg().run({})
    texts, values = [text for each in CAPTIONS for text in each], []
    for query, text in enumerate(texts):
        gains = [2 ** max(plain_rouge(other, text) for other in each) - 1 for each in CAPTIONS]
        order = sorted(range(3), key=lambda n: (-SCORES[query, n], gains[n]))
        ideal = sorted(gains, reverse=True)
        dcg = [a + b / np.log2(3) for a, b in ((gains[order[0]], gains[order[1]]), ideal[:2])]
        values.append(dcg[0] / dcg[1])
    assert found == {"rougeL/nDCG@2": pytest.approx(np.mean(values), rel=1e-6)}


def plain_rouge(a: str, b: str) -> float:
    """By a table of the lengths of the longest common subsequences."""
    rows = [[0] * (len(words(b)) + 1)]
    for left in words(a):
        row = [0]
        for place, right in enumerate(words(b)):
            row.append(rows[-1][place] + 1 if left == right else max(row[-1], rows[-1][place + 1]))
        rows.append(row)
    return 2 * rows[-1][-1] / max(1, len(words(a)) + len(words(b)))


def generated() -> tuple[list[list[str]], list[str]]:
    """Captions of images and texts, some of more words than a number has bits, some of none."""
    rng, known = np.random.default_rng(1), ["a", "b", "c", "Dog", "the,", "of", "in-side", "é"]

    def text(count: int) -> str:
        return " ".join(rng.choice(known, count))

    captions = [[text(n) for n in rng.choice([0, 1, 5, 11, 70], 3)] for _ in range(6)]
    return captions, [text(n) for n in (0, 1, 11, 63, 64, 65, 129)]


def test_rouge_of_long_and_empty_texts() -> None:
    captions, texts = generated()
    expected = [[max(plain_rouge(c, text) for c in each) for each in captions] for text in texts]
    np.testing.assert_allclose(RougeL(captions).relevance(texts), expected, rtol=1e-6)


def test_rouge_is_that_of_its_package() -> None:
    if importlib.util.find_spec("rouge_score") is None:
        pytest.skip("the package rouge-score is not installed")
    from rouge_score.rouge_scorer import RougeScorer

    captions, texts = generated()
    scorer = RougeScorer(["rougeL"])
    expected = [
        [scorer.score_multi(each, text)["rougeL"].fmeasure for each in captions] for text in texts
    ]
    np.testing.assert_allclose(RougeL(captions).relevance(texts), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, r"a\.npy cannot be read \(No such file or directory\). Name another in"),
        (np.zeros((6, 4), np.float32), r"a\.npy holds float32 \[6, 4\], but the data have 6 capti"),
        (np.zeros((6, 3), int), r"holds int64 \[6, 3\], but the data have 6 captions and 3 images"),
        (b"x" * 40, r"a\.npy holds float32 \[10\], but the data have 6 captions and 3 im"),
        (b"\x93NUMPY\x01\x00", r"the file of relevance .*a\.npy is no \.npy file \("),
        (np.full((6, 3), -1, np.float32), "captions from number 0 on have relevance that is negat"),
    ],
)
def test_relevance_that_does_not_fit(tmp_path: Path, rows: Any, words: str) -> None:
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
        (CaptionNdcg(query="image", document="image"), "one of them must read texts, the other"),
        (CaptionNdcg(query="image", document="text"), "'image'; it must be the field of the capt"),
        (CaptionNdcg(relevance=()), "config.evals.a.relevance is (); name at least one"),
        (CaptionNdcg(relevance=("spice",)), "config.evals.a.relevance has 'spice'; write 'rougeL'"),
        (CaptionNdcg(relevance=("rougeL", "rougeL")), "name at least one, and each once"),
    ],
)
def test_keys_are_checked(part: Any, words: str) -> None:
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


def test_a_karpathy_source_has_the_ids_that_pairs_name(tmp_path: Path) -> None:
    sentences = [{"raw": f"a cat {n}", "sentid": 626312 + n} for n in range(6)]
    image = {"filename": "COCO_val2014_000000059393.jpg", "split": "test", "sentences": sentences}
    (tmp_path / "coco.json").write_text(json.dumps({"images": [image]}))
    (tmp_path / image["filename"]).write_bytes(b"")
    source = make_source(configs.Karpathy(path=str(tmp_path / "coco.json"), split="test"))
    assert source.value(0, "filename") == image["filename"]  # type: ignore[attr-defined]
    assert source.value(0, "sentids") == [626312 + n for n in range(5)]  # type: ignore[attr-defined]
