"""Patch groups and maps of words against the equations, and words from a model."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.explain import patch_list, rectangle
from big_retrieval.explain.words import represent
from big_retrieval.inference.load import TrainedModel
from tests.explain.conftest import TOP, make

R = 4


def activations(seen: explain.Patches) -> np.ndarray:
    """elu1p of every patch's logits, [patches, V], by the equations alone."""
    logits = np.asarray(seen.hidden, np.float64) @ np.asarray(seen.params["kernel"]).T
    return np.where(logits >= 0, logits + 1, np.exp(np.minimum(logits, 0)))


def test_a_group_is_pooled_over_its_own_patches_alone(
    model: TrainedModel, scenes: SceneRecords
) -> None:
    seen = explain.look(model, scenes[0]["image"])
    assert seen.side == R
    assert seen.picture.shape == (32, 32, 3)
    each = activations(seen)
    groups = np.stack([rectangle("0:2,1:4", R), patch_list([(3, 3), (0, 2)], R)])
    found = seen.dense(groups)
    for row, group in zip(found, groups, strict=True):
        pooled = each[group.reshape(-1)].max(axis=0)
        np.testing.assert_allclose(row, pooled / np.linalg.norm(pooled), rtol=1e-4)
    assert not np.allclose(found[0], found[1])
    listed = seen.strongest(groups[0], None)
    assert len(listed) == TOP
    order = np.argsort(-found[0], kind="stable")[:TOP]
    assert [word for word, _ in listed] == [seen.words[i] for i in order]


@pytest.mark.parametrize("head", [{}, {"pooling": "mean"}, {"pool_padding": True}])
def test_all_patches_are_the_image(head: dict[str, Any], scenes: SceneRecords) -> None:
    own = make(1, **head)
    image = scenes[1]["image"]
    seen = explain.look(own, image)
    whole = seen.strongest(np.ones((R, R), bool), None)
    plain = explain.strongest(own, image, "image", None)
    assert [word for word, _ in whole] == [word for word, _ in plain]
    np.testing.assert_allclose([v for _, v in whole], [v for _, v in plain], rtol=1e-4)
    corner = seen.dense(rectangle("0:1,0:1", R)[None])
    assert not np.allclose(corner, seen.dense(np.ones((1, R, R), bool)))


def test_a_map_peaks_at_the_value_of_the_image(model: TrainedModel, scenes: SceneRecords) -> None:
    seen = explain.look(model, scenes[2]["image"])
    pooled = activations(seen)
    for word, value in explain.strongest(model, scenes[2]["image"], "image", 5):
        found = seen.map(word)
        assert found.shape == (R, R)
        assert found.max() == pytest.approx(value, rel=1e-4)
        assert found.argmax() == pooled[:, seen.words.index(word)].argmax()


def test_a_file_a_picture_and_an_array_are_the_same(
    model: TrainedModel, scenes: SceneRecords, tmp_path: Path
) -> None:
    array = scenes[0]["image"]
    picture = Image.fromarray(array)
    picture.save(tmp_path / "a.png")
    expected = explain.strongest(model, array, "image")
    for item in (picture, tmp_path / "a.png", str(tmp_path / "a.png")):
        assert explain.strongest(model, item, "image") == expected
        np.testing.assert_array_equal(explain.look(model, item).picture, array)


def test_shared_words_add_up_to_the_score(model: TrainedModel, scenes: SceneRecords) -> None:
    text, image = scenes[3]["captions"][0], scenes[3]["image"]
    found = explain.shared(model, text, image)
    score = model.score(model.encode_texts([text]), model.encode_images([image]))
    assert found.score == pytest.approx(float(score[0, 0]), rel=1e-5)
    assert sum(product for _, product, _ in found.words) == pytest.approx(found.score)
    few = explain.shared(model, text, image, count=TOP // 2)
    assert {word for word, *_ in few.words} <= {word for word, *_ in found.words}


def test_the_words_of_a_text_are_among_its_columns(model: TrainedModel) -> None:
    text = "a red ring left of a green star"
    terms = model.terms("text")
    own = terms.bag(*model.tokenizer.encode([text], 20)).indices.tolist()
    listed = dict(explain.strongest(model, text, "text", None))
    assert {terms.words[i] for i in own} <= listed.keys()  # the gate leaves a text its words
    assert TOP <= len(listed) <= TOP + len(own)


def test_usage_of_a_model_is_the_mean_of_its_rows(
    model: TrainedModel, scenes: SceneRecords
) -> None:
    texts = [scenes[i]["captions"][0] for i in range(5)]
    found = explain.usage(model, iter(texts), "text")
    np.testing.assert_allclose(
        found.means, represent(model, texts, "text").toarray().mean(axis=0), rtol=1e-5
    )


def test_columns_without_names_are_named_by_the_tokenizer(model: TrainedModel) -> None:
    terms = model.terms("text")
    bare = dataclasses.replace(terms, words=())
    assert bare.names(model.tokenizer) == terms.words
    assert bare.names(None)[0] == f"[{terms.ids[0]}]"


@pytest.mark.parametrize("text", ["0:0,0:1", "0:5,0:1", "1:2", "a:b,c:d", "2:1,0:1", "-1:2,0:1"])
def test_rectangles_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="Patches"):
        rectangle(text, R)


def test_mistakes_are_one_sentence(model: TrainedModel, scenes: SceneRecords) -> None:
    seen = explain.look(model, scenes[0]["image"])
    with pytest.raises(UserError, match=r"No patch \(4, 0\)"):
        patch_list([(4, 0)], R)
    with pytest.raises(UserError, match="No term 'nonsense'"):
        seen.map("nonsense")
    with pytest.raises(UserError, match="patch group is empty"):
        seen.dense(np.zeros((1, R, R), bool))
    with pytest.raises(UserError, match="4 x 4 patches"):
        seen.dense(np.ones((R, R), bool))
    with pytest.raises(UserError, match="no lexical image field 'text'"):
        explain.look(model, scenes[0]["image"], "text")
    with pytest.raises(UserError, match=r"nowhere\.png cannot be read"):
        explain.look(model, "nowhere.png")
