"""Writes tests/interop/data/variants.npz: outputs of other libraries with other settings.

    python -m tests.interop.make_variants

Needs torch, transformers, open_clip_torch and timm. The models are those of `generate` with other
settings; images go through the preprocessing of the libraries.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.interop.folders import DATA
from tests.interop.test_variants import FILE, VARIANTS, changed, images

Prepare = Callable[[Image.Image], Any]


def open_clip(settings: dict[str, Any]) -> tuple[Any, Prepare]:
    """The image encoder of open_clip, and its preprocessing."""
    import open_clip

    model = open_clip.model.CLIP(
        **{key: x for key, x in settings["model_cfg"].items() if key != "custom_text"}
    )
    model.load_state_dict(load_file(DATA / "open_clip" / "open_clip_model.safetensors"))
    return model.encode_image, open_clip.image_transform(24, False, **settings["preprocess_cfg"])


def timm(settings: dict[str, Any]) -> tuple[Any, Prepare]:
    """timm's ViT, and its preprocessing."""
    import timm

    sizes = {"embed_dim": 64, "depth": 2, "num_heads": 1, "img_size": 24, "patch_size": 8}
    model = timm.create_model("vit_tiny_patch16_224", **sizes, mlp_ratio=2, num_classes=5)
    model.load_state_dict(load_file(DATA / "timm_vit" / "model.safetensors"))
    cfg = timm.data.resolve_data_config({}, pretrained_cfg=settings["pretrained_cfg"])
    return (
        lambda x: model.forward_features(x)[:, 0],
        timm.data.create_transform(**cfg, is_training=False),
    )


def transformers(kind: str, settings: dict[str, Any]) -> tuple[Any, Prepare]:
    """CLIP or ViT of transformers, and its preprocessing."""
    import transformers as library

    name = settings["image_processor_type"].removesuffix("ImageProcessor").lower()
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    processor = getattr(module, settings["image_processor_type"] + "Pil")(
        **{key: x for key, x in settings.items() if key != "image_processor_type"}
    )
    model: Any = (
        library.CLIPModel.from_pretrained(DATA / kind)
        if kind == "hf_clip"
        else library.ViTModel.from_pretrained(DATA / kind, add_pooling_layer=False)
    )

    def encode(pixels: Any) -> Any:
        if kind == "hf_vit":
            return model(pixels).last_hidden_state[:, 0]
        found = model.get_image_features(pixels)
        return getattr(found, "pooler_output", found)

    return encode, lambda image: torch.tensor(
        np.asarray(processor(image, return_tensors="np")["pixel_values"][0]), dtype=torch.float32
    )


def main() -> None:
    """Writes the file."""
    found = {}
    for name, (kind, changes) in VARIANTS.items():
        settings = changed(kind, changes)
        if kind.startswith("hf"):
            encode, prepare = transformers(kind, settings)
        else:
            encode, prepare = (open_clip if kind == "open_clip" else timm)(settings)
        with torch.no_grad():
            pixels = torch.stack([prepare(Image.fromarray(image)) for image in images()])
            found[name] = torch.nn.functional.normalize(encode(pixels), dim=-1).numpy()
    np.savez(FILE, **found)
    print(json.dumps({name: list(x.shape) for name, x in found.items()}))


if __name__ == "__main__":
    main()
