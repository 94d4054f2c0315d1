"""CLIP's two towers, together or alone: limits, config and weights."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from big_retrieval.config import LogitScale
from big_retrieval.exporting.forms import (
    DENSE,
    Form,
    check_field,
    check_head,
    check_tower,
    layers,
    named,
    not_said,
)
from big_retrieval.exporting.parts import Exported, unlike
from big_retrieval.exporting.target import ends
from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.names import NameTable
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
NAMES = {"image": image_names.HF_CLIP_IMAGE, "text": text_names.HF_CLIP_TEXT}
PROJECTIONS = {"image": "visual_projection.weight", "text": "text_projection.weight"}


def _tower_problems(model: Exported, modality: str) -> Iterator[str]:
    part = model.of(modality)
    yield from check_field(part, modality)
    yield from check_tower(part, TOWERS[modality])
    yield from check_head(part, {"type": "projection", "spheres": None, "pool": "tower"})
    if part.head.dim is None:
        yield f"config.fields.{part.name}.head.dim None (CLIP has a projection)"


def clip_problems(model: Exported) -> Iterator[str]:
    """Yields problems of the two towers together, in any library."""
    for modality in TOWERS:
        yield from _tower_problems(model, modality)
    image, text = (model.of(modality).head.dim for modality in TOWERS)
    if image != text:
        yield f"projections of {image} and {text} dimensions"
    # One token's oblique embedding is a sphere's.
    yield from unlike("config", model.config, {"topology": ("sphere", "oblique")})


def _end_problems(model: Exported) -> Iterator[str]:
    if ends(model)[1] == 2:
        yield "the end token 2, a number for which CLIP pools at the largest id"


def _clip_problems(model: Exported) -> Iterator[str]:
    yield from clip_problems(model)
    yield from _end_problems(model)


def _image_problems(model: Exported) -> Iterator[str]:
    yield from _tower_problems(model, "image")
    yield from unlike("config", model.config, {"topology": DENSE})


def _text_problems(model: Exported) -> Iterator[str]:
    yield from _tower_problems(model, "text")
    yield from unlike("config", model.config, {"topology": DENSE})
    yield from _end_problems(model)


def _text_config(model: Exported) -> dict[str, Any]:
    part, (start, end) = model.of("text"), ends(model)
    return {
        **layers(part.tower),
        "model_type": "clip_text_model",
        "vocab_size": part.params["token_embedding"].shape[0],
        "max_position_embeddings": part.positions,
        "projection_dim": part.head.dim,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": model.tokenizer.pad_id,
    }


def _image_config(model: Exported) -> dict[str, Any]:
    part = model.of("image")
    return {
        **layers(part.tower),
        "model_type": "clip_vision_model",
        "image_size": part.field.size,
        "patch_size": part.tower.patch,
        "num_channels": 3,
        "projection_dim": part.head.dim,
    }


def _clip_config(model: Exported) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "projection_dim": model.of("text").head.dim,
        "text_config": _text_config(model),
        "vision_config": _image_config(model),
    }


def _arrays(model: Exported, modality: str) -> Flat:
    """Returns the weights of one tower and its projection in transformers."""
    part = model.of(modality)
    kernel = np.transpose(part.head_params["kernel"])
    return {**named(NAMES[modality], part.params), PROJECTIONS[modality]: kernel}


def logit_scale(model: Exported) -> Flat:
    """Returns the logarithm of the factor of scores; CLIP's default if the loss has none."""
    scale = np.log(LogitScale().init) if model.logit_scale is None else model.logit_scale
    return {"logit_scale": np.asarray(scale, np.float32)}


def _clip_arrays(model: Exported) -> Flat:
    return {**_arrays(model, "image"), **_arrays(model, "text"), **logit_scale(model)}


def _alone(config: Callable[[Exported], dict[str, Any]]) -> Callable[[Exported], dict[str, Any]]:
    return lambda model: {**config(model), **not_said(model)}


CLIP = Form("CLIPModel", _clip_problems, _clip_config, _clip_arrays)
CLIP_IMAGE = Form(
    "CLIPVisionModelWithProjection",
    _image_problems,
    _alone(_image_config),
    lambda model: _arrays(model, "image"),
)
CLIP_TEXT = Form(
    "CLIPTextModelWithProjection",
    _text_problems,
    _alone(_text_config),
    lambda model: _arrays(model, "text"),
)


def open_clip_arrays(model: Exported) -> Flat:
    """Returns the weights of a model without `clip_problems` by open_clip's names."""
    tables: dict[str, NameTable] = {
        "visual.proj": image_names.OPEN_CLIP_IMAGE,
        "text_projection": text_names.OPEN_CLIP_TEXT,
    }
    found = logit_scale(model)
    for modality, (projection, names) in zip(TOWERS, tables.items(), strict=True):
        part = model.of(modality)
        found |= named(names, part.params) | {projection: part.head_params["kernel"]}
    return found
