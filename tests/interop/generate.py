"""Writes tests/interop/data: tiny random models of other libraries, and their values.

    python -m tests.interop.generate [NAME ...]

Needs torch, transformers, open_clip_torch and timm, which the tests do not need. A folder has the
files of the library, and expected.npz with inputs, outputs and, for some, gradients. Kinds whose
library is missing remain unchanged.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.interop import make_masked, make_resnets, make_tokenizer
from tests.interop.folders import DATA
from tests.interop.torch_models import (
    BERT,
    DISTILBERT,
    IDS,
    MASK,
    PIXELS,
    ROBERTA,
    SIZES,
    Arrays,
    gradients,
    perturbed,
    weighted,
    write,
)

WITH_GRADIENTS = ("bert", "mpnet", "open_clip", "timm_vit", "masked_bert")  # one of each family


def built(name: str, **changes: Any) -> Any:
    """A text encoder of transformers, without its pooler."""
    config = getattr(transformers, f"{name}Config")(**{**BERT, **changes})
    return perturbed(getattr(transformers, f"{name}Model")(config, add_pooling_layer=False))


def distilbert() -> Any:
    return perturbed(transformers.DistilBertModel(transformers.DistilBertConfig(**DISTILBERT)))


TEXT: dict[str, Callable[[], Any]] = {
    "bert": lambda: built("Bert"),
    "bert_tanh_8_heads": lambda: built("Bert", hidden_act="gelu_new", num_attention_heads=8),
    "roberta": lambda: built("Roberta", **ROBERTA),
    "xlm_roberta": lambda: built("XLMRoberta", **ROBERTA),
    "distilbert": distilbert,
    "mpnet": lambda: built("MPNet", max_position_embeddings=302, pad_token_id=1),
}


def text(name: str, folder: Path) -> Arrays:
    """A text encoder's outputs at all positions, and its gradients."""
    model = TEXT[name]()
    model.save_pretrained(folder)
    ids, mask = IDS, MASK
    if name == "mpnet":  # long enough for the last of its buckets
        ids = np.random.default_rng(2).integers(3, 40, (2, 300))
        mask = np.ones_like(ids)
    out = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state
    out = out * torch.tensor(mask)[:, :, None]
    loss, weights = weighted(out)
    loss.backward()
    found = {"ids": ids, "mask": mask, "out": out.detach().numpy(), "weights": weights}
    return found | gradients(model)


def hf_vit(folder: Path) -> Arrays:
    model = perturbed(
        transformers.ViTModel(
            transformers.ViTConfig(**SIZES, intermediate_size=48, image_size=24, patch_size=8),
            add_pooling_layer=False,
        )
    )
    model.save_pretrained(folder)
    return image(model, lambda x: model(x).last_hidden_state[:, :1], named=False)


def image(model: Any, forward: Callable[[Any], Any], *, named: bool = True) -> Arrays:
    """A vision tower's token, and its gradients if `named`: its names are those of the file."""
    out = forward(torch.tensor(PIXELS.transpose(0, 3, 1, 2)))
    loss, weights = weighted(out)
    loss.backward()
    found = {"pixels": PIXELS, "out": out.detach().numpy(), "weights": weights}
    return found | (gradients(model) if named else {})


def timm_vit(folder: Path, name: str = "vit_tiny_patch16_224", **changes: Any) -> Arrays:
    import timm

    sizes = {"embed_dim": 64, "depth": 2, "num_heads": 1, "img_size": 24, "patch_size": 8}
    model = perturbed(timm.create_model(name, **sizes, mlp_ratio=2, num_classes=5, **changes))
    config = {"architecture": name, "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    write(folder, dict(model.state_dict()), "config.json", config)
    return image(model, lambda x: model.forward_features(x)[:, :1])


def hf_clip(folder: Path, act: str) -> Arrays:
    sizes = {**SIZES, "intermediate_size": 48, "hidden_act": act}
    words = {**sizes, "vocab_size": 40, "max_position_embeddings": 6, "eos_token_id": 39}
    vision = {**sizes, "image_size": 24, "patch_size": 8}
    model = perturbed(
        transformers.CLIPModel(
            transformers.CLIPConfig(text_config=words, vision_config=vision, projection_dim=20)
        )
    )
    model.save_pretrained(folder)
    return pair(
        model,
        lambda x: _tensor(model.get_image_features(x)),
        lambda x: _tensor(model.get_text_features(x, attention_mask=torch.tensor(MASK))),
    )


def _tensor(out: Any) -> Any:
    return out if isinstance(out, torch.Tensor) else out.pooler_output


def pair(model: Any, images: Callable[[Any], Any], texts: Callable[[Any], Any]) -> Arrays:
    """Features of both towers, and gradients of a weighted sum of them."""
    a, b = images(torch.tensor(PIXELS.transpose(0, 3, 1, 2))), texts(torch.tensor(IDS))
    loss_a, weights_a = weighted(a)
    loss_b, weights_b = weighted(b, 2)
    (loss_a + loss_b).backward()
    return {
        "pixels": PIXELS, "ids": IDS, "mask": MASK, "image": a.detach().numpy(),
        "text": b.detach().numpy(), "image_weights": weights_a, "text_weights": weights_b,
        "temperature": np.float32(model.logit_scale.item()), **gradients(model),
    }  # fmt: skip


def open_clip(folder: Path, *, quick: bool = False, custom: bool = False) -> Arrays:
    import open_clip as library

    settings = {
        "embed_dim": 20,
        "quick_gelu": quick,
        "custom_text": custom,
        "vision_cfg": {
            "image_size": 24, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8,
            "mlp_ratio": 1.5,
        },
        "text_cfg": {
            "context_length": 6, "vocab_size": 40, "width": 32, "heads": 4, "layers": 2,
        },
    }  # fmt: skip
    keys = {key: value for key, value in settings.items() if key != "custom_text"}
    cls = library.CustomTextCLIP if custom else library.CLIP
    model = perturbed(cls(**keys))
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    whole = {"model_cfg": settings, "preprocess_cfg": {"mean": mean, "std": std}}
    state = {k: v for k, v in model.state_dict().items() if "attn_mask" not in k}
    write(folder, state, "open_clip_config.json", whole, "open_clip_model.safetensors")
    return pair(model, model.encode_image, model.encode_text)


KINDS: dict[str, Callable[[Path], Arrays]] = {
    **{name: partial(text, name) for name in TEXT},
    "hf_vit": hf_vit,
    "hf_clip": lambda folder: hf_clip(folder, "gelu"),
    "hf_clip_quick": lambda folder: hf_clip(folder, "quick_gelu"),
    "timm_vit": timm_vit,
    "open_clip": open_clip,
    "open_clip_quick": lambda folder: open_clip(folder, quick=True),
    "open_clip_custom": lambda folder: open_clip(folder, custom=True),
    **{name: partial(make_masked.language, name) for name in make_masked.MODELS},
    **{name: partial(make, name) for name, make in make_resnets.KINDS.items()},
    "clip_tokenizer": make_tokenizer.clip_tokenizer,
}


def main(names: list[str]) -> None:
    """Writes the folders of some kinds, or of all."""
    for name in names or KINDS:
        torch.manual_seed(0)
        try:
            arrays = KINDS[name](DATA / name)
        except ImportError as problem:
            print(f"{name}: left as it is ({problem})")
            continue
        if name not in WITH_GRADIENTS:
            arrays = {key: x for key, x in arrays.items() if not key.startswith("grad.")}
        if arrays:
            np.savez_compressed(DATA / name / "expected.npz", **arrays)
        print(f"{name}: {sum(f.stat().st_size for f in (DATA / name).iterdir()):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
