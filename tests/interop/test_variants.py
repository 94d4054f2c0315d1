"""Models of other libraries with other image settings compute what the library computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval.interop.model import import_model
from tests.interop.folders import DATA, with_words

FILE = DATA / "variants.npz"
CLIP = {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 24, "width": 24}}
SQUARE = {"height": 24, "width": 24}
SHORT = {"shortest_edge": 24}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # folder of data, keys of its settings file
    "open_clip": ("open_clip", {}),
    "open_clip, mean of patches": ("open_clip", {"model_cfg.vision_cfg.pool_type": "avg"}),
    "open_clip, squash": ("open_clip", {"preprocess_cfg.resize_mode": "squash"}),
    "open_clip, bilinear": ("open_clip", {"preprocess_cfg.interpolation": "bilinear"}),
    "open_clip, epsilon": ("open_clip", {"model_cfg.vision_cfg.norm_kwargs": {"eps": 0.1}}),
    "timm": ("timm_vit", {}),
    "timm, crop_pct": ("timm_vit", {"pretrained_cfg.crop_pct": 0.7}),
    "timm, squash": (
        "timm_vit",
        {"pretrained_cfg.crop_mode": "squash", "pretrained_cfg.interpolation": "bilinear"},
    ),
    "CLIP": ("hf_clip", {**CLIP, "size": SHORT}),
    "CLIP, larger": ("hf_clip", {**CLIP, "size": {"shortest_edge": 29}, "resample": 2}),
    "CLIP, squash": ("hf_clip", {**CLIP, "size": SQUARE, "do_center_crop": False}),
    "CLIP, not normalized": ("hf_clip", {**CLIP, "size": SHORT, "do_normalize": False}),
    "ViT": ("hf_vit", {"image_processor_type": "ViTImageProcessor", "size": SQUARE}),
}
SETTINGS = {"open_clip": "open_clip_config.json", "timm_vit": "config.json"}


def images() -> list[np.ndarray]:
    """Images of several shapes, with odd and even margins."""
    rng = np.random.default_rng(7)
    sizes = [(60, 40), (40, 63), (24, 24), (97, 52), (31, 24)]
    coarse = [rng.integers(0, 256, (7, 7, 3), dtype=np.uint8) for _ in sizes]
    return [
        np.asarray(Image.fromarray(x).resize(size, Image.Resampling.BICUBIC))
        for x, size in zip(coarse, sizes, strict=True)
    ]


def changed(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The settings file with other values."""
    path = DATA / kind / SETTINGS.get(kind, "none")
    settings = json.loads(path.read_text()) if path.is_file() else {}
    for name, value in changes.items():
        *inside, key = name.split(".")
        node = settings
        for name in inside:
            node = node[name]
        node[key] = value
    if kind == "timm_vit":
        settings["pretrained_cfg"]["input_size"] = [3, 24, 24]
    return settings


@pytest.mark.parametrize("name", VARIANTS)
def test_import_computes_what_the_library_does(name: str, tmp_path: Path) -> None:
    kind, changes = VARIANTS[name]
    folder = with_words(kind, tmp_path)
    file = folder / SETTINGS.get(kind, "preprocessor_config.json")
    settings = changed(kind, changes)
    if kind == "open_clip":  # texts end as in `with_words`
        texts = json.loads(file.read_text())["model_cfg"]["text_cfg"]
        settings["model_cfg"]["text_cfg"] = texts
    file.write_text(json.dumps(settings))
    embeddings = import_model(str(folder)).encode_images(images())[:, 0]
    embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    with np.load(FILE) as expected:
        np.testing.assert_allclose(embeddings, expected[name], atol=1e-5)
