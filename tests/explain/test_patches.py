"""Patch groups, maps and words of a model against the equations."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.explain import patch_list, rectangle
from big_retrieval.explain.words import represent
from big_retrieval.inference.load import TrainedModel
from big_retrieval.runtime import progress
from tests.explain.conftest import TOP, make
from tests.helpers import user_error
from tests.runtime.test_progress_bars import Terminal

R = 4


def activations(seen: explain.Patches) -> np.ndarray:
    """elu1p of every patch's logits, [patches, V], by the equations."""
    logits = np.asarray(seen.hidden, np.float64) @ np.asarray(seen.params["kernel"]).T
    return np.where(logits >= 0, logits + 1, np.exp(np.minimum(logits, 0)))


def test_group_is_pooled_over_its_patches(model: TrainedModel, scenes: SceneRecords) -> None:
    seen = explain.look(model, scenes[0]["image"])
    assert seen.side == R
    assert seen.picture.shape == (32, 32, 3)
    values = activations(seen)
    groups = np.stack([rectangle("0:2,1:4", R), patch_list([(3, 3), (0, 2)], R)])
    dense = seen.dense(groups)
    for row, group in zip(dense, groups, strict=True):
        pooled = values[group.reshape(-1)].max(axis=0)
        np.testing.assert_allclose(row, pooled / np.linalg.norm(pooled), rtol=1e-4)
    assert not np.allclose(dense[0], dense[1])
    listed = seen.strongest(groups[0], None)
    assert len(listed) == TOP
    order = np.argsort(-dense[0], kind="stable")[:TOP]
    assert [word for word, _ in listed] == [seen.words[i] for i in order]


@pytest.mark.parametrize("head", [{}, {"pooling": "mean"}, {"pool_padding": True}])
def test_strongest_of_all_patches_equals_image(head: dict[str, Any], scenes: SceneRecords) -> None:
    model = make(1, **head)
    image = scenes[1]["image"]
    seen = explain.look(model, image)
    whole = seen.strongest(np.ones((R, R), bool), None)
    plain = explain.strongest(model, image, "image", None)
    assert [word for word, _ in whole] == [word for word, _ in plain]
    np.testing.assert_allclose([v for _, v in whole], [v for _, v in plain], rtol=1e-4)
    corner = seen.dense(rectangle("0:1,0:1", R)[None])
    assert not np.allclose(corner, seen.dense(np.ones((1, R, R), bool)))


def test_map_peaks_at_value_of_image(model: TrainedModel, scenes: SceneRecords) -> None:
    seen = explain.look(model, scenes[2]["image"])
    pooled = activations(seen)
    for word, value in explain.strongest(model, scenes[2]["image"], "image", 5):
        values = seen.map(word)
        assert values.shape == (R, R)
        assert values.max() == pytest.approx(value, rel=1e-4)
        assert values.argmax() == pooled[:, seen.words.index(word)].argmax()


def test_image_may_be_file_picture_or_array(
    model: TrainedModel, scenes: SceneRecords, scene: Path
) -> None:
    array = scenes[0]["image"]
    expected = explain.strongest(model, array, "image")
    for item in (Image.fromarray(array), scene, str(scene)):
        assert explain.strongest(model, item, "image") == expected
        np.testing.assert_array_equal(explain.look(model, item).picture, array)


def test_shared_words_add_up_to_the_score(model: TrainedModel, scenes: SceneRecords) -> None:
    text, image = scenes[3]["captions"][0], scenes[3]["image"]
    shared = explain.shared(model, text, image)
    score = model.score(model.encode_texts([text]), model.encode_images([image]))
    assert shared.score == pytest.approx(float(score[0, 0]), rel=1e-5)
    assert sum(product for _, product, _ in shared.words) == pytest.approx(shared.score)
    few = explain.shared(model, text, image, count=TOP // 2)
    assert {word for word, *_ in few.words} <= {word for word, *_ in shared.words}


def test_text_keeps_its_words(model: TrainedModel) -> None:
    text = "a red ring left of a green star"
    terms = model.terms("text")
    bag = terms.bag(*model.tokenizer.encode([text], 20)).indices.tolist()
    listed = dict(explain.strongest(model, text, "text", None))
    assert {terms.words[i] for i in bag} <= listed.keys()  # the gate keeps input terms
    assert TOP <= len(listed) <= TOP + len(bag)


def test_usage_is_mean_of_rows(model: TrainedModel, scenes: SceneRecords) -> None:
    texts = [scenes[i]["captions"][0] for i in range(5)]
    means = represent(model, texts, "text").toarray().mean(axis=0)
    usage = explain.usage(model, iter(texts), "text")
    np.testing.assert_allclose(usage.means, means, rtol=1e-5)


def test_long_encodings_show_a_bar_on_terminals(
    model: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    represent(model, ["a red circle"] * 3, "text")
    assert "3/3" in out.getvalue()


def test_terms_without_words_have_names_of_tokenizer(model: TrainedModel) -> None:
    terms = model.terms("text")
    bare = dataclasses.replace(terms, words=())
    assert bare.names(model.tokenizer) == terms.words
    assert bare.names(None)[0] == f"[{terms.ids[0]}]"


@pytest.mark.parametrize("text", ["0:0,0:1", "0:5,0:1", "1:2", "a:b,c:d", "2:1,0:1", "-1:2,0:1"])
def test_rectangle_rejects_other_forms(text: str) -> None:
    with user_error("Patches"):
        rectangle(text, R)


def test_patches_reject_wrong_input(model: TrainedModel, scenes: SceneRecords) -> None:
    seen = explain.look(model, scenes[0]["image"])
    for call, words in (
        (lambda: patch_list([(4, 0)], R), "No patch (4, 0)"),
        (lambda: seen.map("nonsense"), "No term 'nonsense'"),
        (lambda: seen.dense(np.zeros((1, R, R), bool)), "patch group is empty"),
        (lambda: seen.dense(np.ones((R, R), bool)), "4 x 4 patches"),
        (lambda: explain.look(model, scenes[0]["image"], "text"), "no lexical image field 'text'"),
        (lambda: explain.look(model, "nowhere.png"), "nowhere.png cannot be read"),
    ):
        with user_error(words):
            call()
