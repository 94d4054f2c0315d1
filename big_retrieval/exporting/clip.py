"""CLIP's two towers, together or alone: limits, config and weights."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from big_retrieval.config import LogitScale
from big_retrieval.exporting.forms import (
    DENSE,
    PROJECTION,
    Form,
    encoder_problems,
    keys_for_import,
    layers,
    rename_params,
)
from big_retrieval.exporting.parts import Exported, unlike
from big_retrieval.exporting.target import ends
from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.source import Flat

TOWERS = {
    "image": {
        "type": "vit", "class_tokens": 1, "pool": "first", "norm_first": True, "patch_bias": False,
    },
    "text": {
        "type": "bert", "norm": "pre", "causal": True, "pool": "last", "final_norm": True,
        "token_types": 0, "relative_positions": 0, "class_tokens": 1,
    },
}  # fmt: skip
HF_NAMES = {  # modality -> table of the tower, name of the projection
    "image": (image_names.HF_CLIP_IMAGE, "visual_projection.weight"),
    "text": (text_names.HF_CLIP_TEXT, "text_projection.weight"),
}
OPEN_CLIP_NAMES = {
    "image": (image_names.OPEN_CLIP_IMAGE, "visual.proj"),
    "text": (text_names.OPEN_CLIP_TEXT, "text_projection"),
}


def _tower_problems(model: Exported, modality: str) -> Iterator[str]:
    encoding = model.encoding_of(modality)
    yield from encoder_problems(
        encoding, modality, TOWERS[modality], PROJECTION | {"pool": "tower"}
    )
    if encoding.head.dim is None:
        yield f"config.fields.{encoding.name}.head.dim None (CLIP has a projection)"


def clip_problems(model: Exported) -> Iterator[str]:
    """Yields problems of the two towers together, in any library."""
    for modality in TOWERS:
        yield from _tower_problems(model, modality)
    image, text = (model.encoding_of(modality).head.dim for modality in TOWERS)
    if image != text:
        yield f"projections of {image} and {text} dimensions"
    # With one class token, "oblique" equals "sphere".
    yield from unlike("config", model.config, {"topology": ("sphere", "oblique")})


def _end_problems(model: Exported) -> Iterator[str]:
    if ends(model)[1] == 2:
        yield "the end token 2, an id for which CLIP pools at the largest id"


def _problems(model: Exported, modality: str = "") -> Iterator[str]:
    """Yields problems of one tower alone, or of both."""
    if modality:
        yield from _tower_problems(model, modality)
        yield from unlike("config", model.config, {"topology": DENSE})
    else:
        yield from clip_problems(model)
    if modality != "image":
        yield from _end_problems(model)


def _tower_config(model: Exported, modality: str) -> dict[str, Any]:
    encoding = model.encoding_of(modality)
    shared = {**layers(encoding.tower), "projection_dim": encoding.head.dim}
    if modality == "image":
        return shared | {
            "model_type": "clip_vision_model",
            "image_size": encoding.field.size,
            "patch_size": encoding.tower.patch,
            "num_channels": 3,
        }
    start, end = ends(model)
    return shared | {
        "model_type": "clip_text_model",
        "vocab_size": encoding.params["token_embedding"].shape[0],
        "max_position_embeddings": encoding.positions,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": model.tokenizer.pad_id,
    }


def _clip_config(model: Exported) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "projection_dim": model.encoding_of("text").head.dim,
        "text_config": _tower_config(model, "text"),
        "vision_config": _tower_config(model, "image"),
    }


def _hf_arrays(model: Exported, modality: str) -> Flat:
    """Returns the weights of one tower and its projection in transformers."""
    encoding, (table, projection) = model.encoding_of(modality), HF_NAMES[modality]
    kernel = np.transpose(encoding.head_params["kernel"])
    return {**rename_params(table, encoding.params), projection: kernel}


def _logit_scale(model: Exported) -> Flat:
    """Returns the logit scale; CLIP's default if the loss does not have one."""
    scale = np.log(LogitScale().init) if model.logit_scale is None else model.logit_scale
    return {"logit_scale": np.asarray(scale, np.float32)}


def _clip_arrays(model: Exported) -> Flat:
    return {**_hf_arrays(model, "image"), **_hf_arrays(model, "text"), **_logit_scale(model)}


def open_clip_arrays(model: Exported) -> Flat:
    """Returns the weights of a model without `clip_problems` by open_clip's names."""
    arrays = _logit_scale(model)
    for modality, (table, projection) in OPEN_CLIP_NAMES.items():
        encoding = model.encoding_of(modality)
        arrays |= rename_params(table, encoding.params) | {
            projection: encoding.head_params["kernel"]
        }
    return arrays


def _single_tower(name: str, modality: str) -> Form:
    return Form(
        name,
        functools.partial(_problems, modality=modality),
        lambda model: {**_tower_config(model, modality), **keys_for_import(model)},
        functools.partial(_hf_arrays, modality=modality),
    )


CLIP = Form("CLIPModel", _problems, _clip_config, _clip_arrays)
CLIP_IMAGE = _single_tower("CLIPVisionModelWithProjection", "image")
CLIP_TEXT = _single_tower("CLIPTextModelWithProjection", "text")
