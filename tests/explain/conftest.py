"""A lexical model of images and texts with random weights."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.data.build import make_tokenizer
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.inference.load import TrainedModel, put_together
from big_retrieval.models.towers import make_model
from tests.helpers import drawn, raw_config

TOP = 40  # terms that the gate keeps of about 120


def lexical_config(**head: Any) -> Config:
    """A config of images (4 x 4 patches) and texts over a small vocabulary."""
    c = raw_config(topology="inner")
    keys = {"terms": "words", "normalise": True, "top_k": TOP, "activation": "elu1p", **head}
    shape = configs.Lexical(**keys)
    c.fields.text.head = recipe.entry(shape, tied=True, keep_input_terms=True)
    c.fields.image.head = recipe.entry(shape, tied=False, layer_norm=False)
    c.towers.image.update(class_tokens=0, pool="none")
    c.towers.text.update(class_tokens=1, pool="none")
    c.evals = {
        "test": recipe.entry(configs.Retrieval(), data=configs.Scenes("scenes", "test", 32, 30))
    }
    return configs.load(c)


def make(seed: int = 0, **head: Any) -> TrainedModel:
    """A model with random weights."""
    c = lexical_config(**head)
    tokenizer = make_tokenizer(c, SceneRecords("train", size=32, count=40))
    network = make_model(c, tokenizer.vocab_size, tokenizer)
    weights = drawn(network, network.example_inputs(), seed=seed)["params"]
    return put_together(Path(f"model-{seed}"), c, tokenizer, jax.device_get(weights), 16)


@pytest.fixture(scope="session")
def model() -> TrainedModel:
    return make()


@pytest.fixture
def some_damaged(tmp_path: Path, scenes: SceneRecords) -> str:
    """A file of four pairs: one without a caption, one without its picture."""
    lines = []
    for number in range(4):
        Image.fromarray(scenes[number]["image"]).save(tmp_path / f"{number}.png")
        captions = [] if number == 1 else list(scenes[number]["captions"])
        lines.append(json.dumps({"image": f"{number}.png", "captions": captions}))
    (tmp_path / "2.png").unlink()
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "pairs.jsonl")


@pytest.fixture(scope="session")
def scenes() -> SceneRecords:
    return SceneRecords("test", size=32, count=30)


@pytest.fixture
def scene(scenes: SceneRecords, tmp_path: Path) -> Path:
    """The file of the first scene."""
    Image.fromarray(scenes[0]["image"]).save(tmp_path / "scene.png")
    return tmp_path / "scene.png"
