"""Grad-CAM of all kinds of models; tests/golden/test_oblique.py has its values."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.build import make_readers, make_tokenizer
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.inference.gradcam import GradCam, obstacle
from big_retrieval.inference.load import TrainedModel, put_together
from big_retrieval.models.towers import make_model
from tests.helpers import drawn, raw_config, tiny

SCENES = SceneRecords("test", size=32, count=6)


def make(towers: dict[str, Any], **changes: Any) -> TrainedModel:
    """A tiny model with random weights."""
    c = raw_config(**changes)
    for name, keys in towers.items():
        c.towers[name].update(keys)
    config = configs.load(c)
    tokenizer = make_tokenizer(config, SCENES)
    network = make_model(config, tokenizer.vocab_size, tokenizer)
    weights = drawn(network, network.example_inputs())["params"]
    return put_together(Path("model"), config, tokenizer, jax.device_get(weights), 16)


def seen(model: TrainedModel, rows: int = 3) -> GradCam:
    """Signed relevances of the first scenes with their first captions."""
    readers = make_readers(model.config, model.tokenizer)
    arrays = {
        name: stack(readers[name], [readers[name].value(SCENES, i, 0) for i in range(rows)])
        for name in ("text", "image")
    }
    return model.encoder.gradcam(model.weights, arrays, "text", "image")


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


BOTH = ("image", "text")
KINDS = {
    "one-token": ({name: {"class_tokens": 1} for name in BOTH}, "oblique"),
    "sphere": ({}, "sphere"),
    "last-token": ({"text": {"pool": "last", "causal": True, "norm": "post"}}, "oblique"),
    "means": ({name: {"class_tokens": 1, "pool": "mean"} for name in BOTH}, "sphere"),
    "scanned": ({name: {"depth": 2, "scan": True, "remat": "block"} for name in BOTH}, "oblique"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_relevances_of_pairs_add_up(kind: str) -> None:
    """Inner products of class tokens add up, and so do their slopes."""
    towers, topology = KINDS[kind]
    model = make(towers, topology=topology)
    result = seen(model)
    for part in result:
        close(part.pairs.sum(1), part.whole)
        if kind == "one-token":
            np.testing.assert_array_equal(part.pairs[:, 0], part.whole)
        assert np.abs(part.pairs).max() > 0
    texts = [SCENES.texts(i, "captions")[0] for i in range(3)]
    images = [SCENES[i]["image"] for i in range(3)]
    scores = model.score(model.encode_texts(texts), model.encode_images(images))
    close(result.scores.whole, np.diagonal(scores))
    _, mask = model.tokenizer.encode(texts, 20)
    length = result.text.whole.shape[1]
    blank = ~mask[:, :length]  # plus the class token, the first or the last position
    ends = mask.sum(1) - 1 if kind == "last-token" else np.zeros(3, int)
    blank[np.arange(3), ends] = True
    np.testing.assert_array_equal(result.text.whole == 0, blank)
    if kind == "scanned":
        plain = make({name: {"depth": 2} for name in BOTH}, topology=topology)
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(seen(plain)), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_batches_of_pairs_equal_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from big_retrieval.inference import encoder

    model = make({})
    whole = seen(model, 5)
    monkeypatch.setattr(encoder, "PAIRS", 2)
    for a, b in zip(jax.tree.leaves(seen(model, 5)), jax.tree.leaves(whole), strict=True):
        assert a.shape == b.shape
        close(a, b)


def obstacle_of(config: configs.Config, text: str = "text", image: str = "image") -> str:
    return obstacle(make_model(config, 100), text, image)


def test_obstacle_names_reason() -> None:
    c = tiny()
    assert not obstacle_of(c)
    assert "no text field 'image'. It has: text." in obstacle_of(c, "image")
    texts = dataclasses.replace(c, fields={"text": c.fields["text"]})
    assert "no image field 'image'. It has: none." in obstacle_of(texts)
    part: Any = c.fields["image"]
    words = {**c.fields, "image": dataclasses.replace(part, head=configs.Lexical())}
    lexical = dataclasses.replace(c, fields=words)
    assert "'image' has a lexical head" in obstacle_of(lexical)
    for tower, end in (
        (configs.ResNet(), "'resnet'."),
        (configs.ViT(pool="none"), "'vit', pool 'none'."),
    ):
        other = dataclasses.replace(c, towers={**c.towers, "image": tower})
        assert f"Field 'image' has a tower of the type {end}" in obstacle_of(other)
    hyperbolic = dataclasses.replace(c, topology="hyperbolic")
    assert "the model has 'hyperbolic'." in obstacle_of(hyperbolic)
