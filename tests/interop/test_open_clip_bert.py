"""Text encoders of Hugging Face inside of open_clip: mean and projection, compared with numpy."""

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.errors import UserError
from big_retrieval.interop.initial_weights import read_initial_weights
from big_retrieval.interop.read import read
from big_retrieval.models.heads import MlpHead
from tests.helpers import raw_config
from tests.interop.folders import DATA
from tests.interop.test_imported import shapes
from tests.interop.test_towers import nested, run, text_inputs

HIDDEN, DIM = 26, 20  # open_clip: half of the widths on both sides


def write(folder: Path, name: str, projection: str) -> dict[str, np.ndarray]:
    """Writes a checkpoint of open_clip with an encoder of data/; returns the projection."""
    rng, width = np.random.default_rng(0), 32
    sizes = {
        "mlp": {"text.proj.0.weight": (HIDDEN, width), "text.proj.2.weight": (DIM, HIDDEN)},
        "linear": {"text.proj.weight": (DIM, width)},
        "none": {},
    }[projection]
    maps = {key: rng.normal(size=size).astype(np.float32) for key, size in sizes.items()}
    arrays = {
        f"text.transformer.{key}": array
        for key, array in load_file(DATA / name / "model.safetensors").items()
    }
    scale = {"logit_scale": np.array(math.log(50), np.float32)}
    save_file({**arrays, **maps, **scale}, folder / "open_clip_model.safetensors")
    text = {"hf_model_name": f"x/{name}-base", "heads": 4, "hf_pooler_type": "mean_pooler"}
    whole = {"model_cfg": {"embed_dim": DIM, "text_cfg": text}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    return maps


def projected(x: np.ndarray, maps: dict[str, np.ndarray]) -> np.ndarray:
    if "text.proj.0.weight" in maps:
        x = x @ maps["text.proj.0.weight"].T
        x = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        return x @ maps["text.proj.2.weight"].T
    return x @ maps["text.proj.weight"].T if maps else x


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("roberta", "mlp"),
        pytest.param("roberta", "none", marks=pytest.mark.slow),
        pytest.param("bert", "linear", marks=pytest.mark.slow),
    ],
)
def test_open_clip_bert_computes_mean_and_projection(
    tmp_path: Path, name: str, projection: str
) -> None:
    maps = write(tmp_path, name, projection)
    source = read(str(tmp_path))
    assert (source.unknown, float(source.logit_scale)) == ([], pytest.approx(math.log(50)))  # type: ignore
    (part,) = source.parts.values()
    with np.load(DATA / name / "expected.npz") as file:
        expected = dict(file)
    found: Any = run(part, text_inputs(expected), epsilon=1e-12)  # as the encoder was made
    mask = expected["mask"][:, :, None]
    mean = (expected["out"] * mask).sum(1) / mask.sum(1)
    head: Any = part.head_config
    if projection == "mlp":
        assert head == configs.Mlp(hidden=HIDDEN, dim=DIM, activation="gelu")
        found = MlpHead(head).apply({"params": nested(part.head)}, found)
    elif projection == "linear":
        found = jnp.matmul(found, part.head["kernel"], precision="highest")
    np.testing.assert_allclose(found[:, 0], projected(mean, maps), rtol=1e-5, atol=1e-4)
    assert part.tower.epsilon == (1e-5 if name == "roberta" else 1e-12)


def test_run_starts_from_open_clip_bert_with_logit_scale(tmp_path: Path) -> None:
    maps = write(tmp_path, "roberta", "mlp")
    c: Any = raw_config()
    c.towers = {
        "text": recipe.entry(
            configs.Bert(), width=32, depth=2, heads=4, mlp=48, pool="mean", final_norm=False,
            token_types=1, vocab_size=40,
        )
    }  # fmt: skip
    head = configs.Mlp(hidden=HIDDEN, dim=DIM, activation="gelu")
    c.fields = {
        "query": recipe.entry(configs.TextField(), length=6, head=head),
        "title": recipe.entry(
            configs.TextField(), side="document", length=6, head=head, shares_head="query"
        ),
    }
    c.data, c.evals = recipe.entry(configs.GradedScenes()), {}
    c.init.model = recipe.entry(configs.Init(), path=str(tmp_path))
    config = configs.load(c)
    found = read_initial_weights(config, shapes(config), {}).params
    np.testing.assert_array_equal(found["query_head/fc1/kernel"], maps["text.proj.0.weight"].T)
    assert float(found["scalars/main/logit_scale"]) == pytest.approx(math.log(50))
    c.fields["query"].head.activation = "relu"
    with pytest.raises(UserError, match=r"fields.query.head.*activation=gelu"):
        read_initial_weights(configs.load(c), shapes(config), {})
