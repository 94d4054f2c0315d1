"""Residual networks with torchvision's names.

The files and their values are in data/, written by `python -m tests.interop.generate`.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import big_retrieval
from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import restore_params
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.train.checkpoint import write_model
from big_retrieval.train.loop import train
from tests.helpers import noise
from tests.interop.folders import DATA
from tests.train.test_batch_stats import flat, resnet

pytestmark = pytest.mark.usefixtures("one_model")

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SMALL: dict[str, Any] = {"blocks": (1, 1), "bottleneck": True, "stem": 8}
DEEP: dict[str, Any] = {"blocks": (2, 1, 3), "bottleneck": False, "stem": 4}
STORED = {"resnet_small": SMALL, "resnet_deep": DEEP}


def arrays(name: str = "resnet_small") -> dict[str, np.ndarray]:
    return load_file(DATA / name / "model.safetensors")


def saved(folder: Path, state: dict[str, np.ndarray], prefix: str = "") -> str:
    """Saves a state; returns the file."""
    path = folder / "weights.safetensors"
    save_file({prefix + name: np.ascontiguousarray(x) for name, x in state.items()}, path)
    return str(path)


@pytest.mark.parametrize("prefix", ["", "visual.trunk."])
@pytest.mark.parametrize("name", STORED)
def test_read_recognizes_resnets(tmp_path: Path, prefix: str, name: str) -> None:
    source = read(saved(tmp_path, arrays(name), prefix))
    part = source.parts["image"]
    assert part.tower == configs.ResNet(**STORED[name])
    assert source.unknown == []
    assert f"{prefix}fc.weight" in source.unused
    assert f"{prefix}bn1.num_batches_tracked" in source.unused
    assert len(source.unused) == 2 + sum(path.endswith("/mean") for path in part.stats)


def test_import_takes_pixels_from_the_settings_of_timm(tmp_path: Path) -> None:
    save_file(arrays(), tmp_path / "model.safetensors")
    made = {"input_size": [3, 176, 176], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    settings = {"architecture": "resnet50", "num_classes": 10, "pretrained_cfg": made}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    imported = import_model(str(tmp_path))
    field = imported.config.fields["document"]
    assert isinstance(field, configs.ImageField)
    assert (field.size, field.mean, field.std) == (176, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert imported.config.towers["image"] == configs.ResNet(**SMALL)


@pytest.mark.slow
def test_import_computes_what_torch_does_with_imagenets_pixels(tmp_path: Path) -> None:
    model = import_model(saved(tmp_path, arrays()))
    field = model.config.fields["document"]
    assert isinstance(field, configs.ImageField)
    assert field.size == 224
    np.testing.assert_allclose([field.mean, field.std], [MEAN, STD])
    with np.load(DATA / "resnet_small" / "expected.npz") as file:
        expected = file["out"]
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    images = [Image.fromarray(x) for x in noise(2, 224, 224, 3)]
    found = model.encode_images(images, field="document")
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    write_model(model, tmp_path / "ours")
    again = big_retrieval.load(tmp_path / "ours")
    np.testing.assert_allclose(again.encode_images(images, field="document"), found, atol=1e-6)


@pytest.mark.slow
def test_run_starts_from_a_resnet(tmp_path: Path) -> None:
    theirs = arrays()
    path = saved(tmp_path, theirs)
    init = {"image": recipe.entry(configs.Init(), path=path)}
    groups = {"image": recipe.group("image/.*", frozen=True)}
    changes = {"total_steps": 1, "init": init, "optimizer__groups": groups}
    config = resnet({**SMALL, "frozen_stats": True}, **changes)
    with pytest.raises(UserError, match=r"fields.image.mean is .* was trained with \(0.485, "):
        train(config, tmp_path / "run", jax.devices()[:1])
    field: Any = config.fields["image"]
    image = dataclasses.replace(field, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    config = dataclasses.replace(config, fields={**config.fields, "image": image})
    train(config, tmp_path / "run", jax.devices()[:1])
    folder = tmp_path / "run" / "checkpoints" / "1"
    stats, params = (flat(restore_params(folder, name)) for name in ("batch_stats", "params"))
    pairs = {
        "bn1/var": "bn1.running_var",
        "layer2_0/downsample_bn/mean": "layer2.0.downsample.1.running_mean",
    }
    for ours, name in pairs.items():
        np.testing.assert_array_equal(stats[f"image/{ours}"], theirs[name])
    kernel = params["image/layer2_0/downsample_conv/kernel"]
    np.testing.assert_array_equal(
        kernel.transpose(3, 2, 0, 1), theirs["layer2.0.downsample.0.weight"]
    )


def test_init_rejects_another_resnet(tmp_path: Path) -> None:
    path = saved(tmp_path, arrays("resnet_deep"))
    init = {"image": recipe.entry(configs.Init(), path=path)}
    with pytest.raises(UserError, match=r"--config\.towers\.image\.stem=4"):
        train(resnet(total_steps=1, init=init), tmp_path / "run", jax.devices()[:1])


def test_read_names_arrays_of_networks_that_cannot_be_imported(tmp_path: Path) -> None:
    state = arrays()
    grouped = state | {"layer1.0.conv2.weight": state["layer1.0.conv2.weight"][:, :4]}
    short = {name: x for name, x in state.items() if name != "layer2.0.bn2.running_var"}
    deep = {"conv1.0.weight" if name == "conv1.weight" else name: x for name, x in state.items()}
    for other, path in (
        (grouped, "layer1_0/conv2/kernel"),
        (short, "layer2_0/bn2/var"),
        (deep, "conv1/kernel"),
    ):
        with pytest.raises(UserError, match=path):
            read(saved(tmp_path, other))
