"""Architectures of transformers that can hold our encoders: what they hold, config and weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.config import LogitScale
from big_retrieval.exporting.parts import Encoding, Exported, unlike
from big_retrieval.exporting.target import HIDDEN_ACT, ends
from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.names import NameTable
from big_retrieval.interop.source import Flat

VECTOR = {"type": "projection", "dim": None, "spheres": None}  # no projection
PROJECTED = {"type": "projection", "spheres": None, "pool": "tower"}
DENSE = ("sphere", "oblique", "inner")  # one token's oblique embedding is a sphere's
UNIT = ("sphere", "oblique")


@dataclass(frozen=True)
class Form:
    """An architecture.

    Attributes:
      name: its class in transformers.
      modalities: of the encoders that it is made of, in the order of the alphabet.
      problems: what it cannot hold, see `ExportTarget.problems`.
      config: its config.json, without `architectures`.
      arrays: its weights, by their names.
    """

    name: str
    modalities: tuple[str, ...]
    problems: Callable[[Exported], Iterator[str]]
    config: Callable[[Exported], dict[str, Any]]
    arrays: Callable[[Exported], Flat]

    def whole_config(self, model: Exported) -> dict[str, Any]:
        """All of config.json."""
        return {"architectures": [self.name], "dtype": "float32", **self.config(model)}


def _tower(part: Encoding, wanted: Mapping[str, Any]) -> Iterator[str]:
    yield from unlike(f"config.towers.{part.tower_name}", part.tower, wanted)


def _head(part: Encoding, wanted: Mapping[str, Any]) -> Iterator[str]:
    yield from unlike(f"config.fields.{part.name}.head", part.head, wanted)


def _field(part: Encoding, kind: str) -> Iterator[str]:
    yield from unlike(f"config.fields.{part.name}", part.field, {"type": kind})


def _layers(tower: Any) -> dict[str, Any]:
    """What the configurations of all transformers have."""
    return {
        "hidden_size": tower.width,
        "intermediate_size": tower.mlp,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.heads,
        "hidden_act": HIDDEN_ACT[tower.activation],
        "layer_norm_eps": tower.epsilon,
    }


def _own(model: Exported, **more: Any) -> dict[str, Any]:
    """What these architectures do not say, for an import."""
    return {"big_retrieval": {"normalise": model.normalises(), **more}}


# ---- BERT

BERT_TOWER = {
    "type": "bert", "norm": "post", "final_norm": False, "causal": False, "relative_positions": 0,
    "class_tokens": 1,
}  # fmt: skip


def bert_problems(model: Exported) -> Iterator[str]:
    """Of the encoder inside of a dense text model, whatever follows its pooling."""
    part = model.of("text")
    yield from _field(part, "text")
    yield from _tower(part, BERT_TOWER)
    yield from _head(part, {"type": "projection", "spheres": None})
    if part.pool not in ("first", "mean"):
        yield f"the pooling {part.pool!r} (only 'first' or 'mean')"
    yield from unlike("config", model.config, {"topology": DENSE})


def _bare_bert_problems(model: Exported) -> Iterator[str]:
    yield from bert_problems(model)
    yield from _head(model.of("text"), VECTOR)


def bert_config(model: Exported) -> dict[str, Any]:
    part = model.of("text")
    rows, _ = part.params["token_embedding"].shape
    return {
        **_layers(part.tower),
        "model_type": "bert",
        "vocab_size": rows,
        "max_position_embeddings": part.positions,
        "type_vocab_size": max(2, part.tower.token_types),
        "pad_token_id": model.tokenizer.pad_id,
        "position_embedding_type": "absolute",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _bare_bert_config(model: Exported) -> dict[str, Any]:
    return {**bert_config(model), **_own(model, pool=model.of("text").pool)}


def bert_arrays(model: Exported) -> Flat:
    params = dict(model.of("text").params)
    width = params["token_embedding"].shape[1]
    types = params.get("token_type_embedding", np.zeros((0, width), np.float32))
    more = np.zeros((max(0, 2 - len(types)), width), np.float32)  # ours has fewer, or none
    params["token_type_embedding"] = np.concatenate([types, more])
    return text_names.BERT.to_theirs(params)


def masked_problems(
    model: Exported, activations: tuple[str, ...] = ("log1p_relu",)
) -> Iterator[str]:
    """Of a lexical encoder that is a masked-language model, with these activations behind it."""
    part = model.of("text")
    yield from _field(part, "text")
    yield from _tower(part, BERT_TOWER)
    yield from _head(
        part,
        {
            "type": "lexical", "layer_norm": True, "transform": part.tower.activation,
            "epsilon": part.tower.epsilon, "pooling": "max", "pool_padding": False, "terms": "all",
            "activation": activations, "normalise": False, "top_k": None,
        },
    )  # fmt: skip
    yield from unlike("config", model.config, {"topology": "inner"})


def _masked_config(model: Exported) -> dict[str, Any]:
    return {**bert_config(model), "tie_word_embeddings": model.of("text").head.tied}


def _masked_arrays(model: Exported) -> Flat:
    part = model.of("text")
    head = dict(part.head_params)
    rows = part.params["token_embedding"].shape[0]
    head.setdefault("bias", np.zeros(rows, np.float32))
    found = {f"bert.{name}": array for name, array in bert_arrays(model).items()}
    found |= text_names.BERT_MASKED.table.to_theirs(head)
    if not part.head.tied:
        found["cls.predictions.decoder.bias"] = head["bias"]
    return found


# ---- Vision


def _image_problems(model: Exported, tower: Mapping[str, Any]) -> Iterator[str]:
    part = model.of("image")
    yield from _field(part, "image")
    yield from _tower(part, tower)
    yield from _head(part, {**VECTOR, "pool": "tower"})
    yield from unlike("config", model.config, {"topology": DENSE})


def _vit_problems(model: Exported) -> Iterator[str]:
    wanted = {"type": "vit", "class_tokens": 1, "pool": "first", "norm_first": False}
    yield from _image_problems(model, wanted)


def _vit_config(model: Exported) -> dict[str, Any]:
    part = model.of("image")
    return {
        **_layers(part.tower),
        **_own(model),
        "model_type": "vit",
        "image_size": part.field.size,
        "patch_size": part.tower.patch,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _vit_arrays(model: Exported) -> Flat:
    params = dict(model.of("image").params)
    width = params["patch_embedding/kernel"].shape[1]
    params.setdefault("patch_embedding/bias", np.zeros(width, np.float32))
    return image_names.HF_VIT.to_theirs(params)


def _resnet_problems(model: Exported) -> Iterator[str]:
    yield from _image_problems(model, {"type": "resnet"})


def _resnet_config(model: Exported) -> dict[str, Any]:
    tower = model.of("image").tower
    wider = 4 if tower.bottleneck else 1
    return {
        **_own(model),
        "model_type": "resnet",
        "num_channels": 3,
        "embedding_size": tower.stem,
        "hidden_sizes": [tower.stem * 2**stage * wider for stage in range(len(tower.blocks))],
        "depths": list(tower.blocks),
        "layer_type": "bottleneck" if tower.bottleneck else "basic",
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    }


def _resnet_arrays(model: Exported) -> Flat:
    part = model.of("image")
    return {
        **image_names.HF_RESNET.to_theirs(part.params),
        **image_names.HF_RESNET_STATS.to_theirs(part.stats),
    }


# ---- CLIP

CLIP_IMAGE = {
    "type": "vit", "class_tokens": 1, "pool": "first", "norm_first": True, "patch_bias": False,
}  # fmt: skip
CLIP_TEXT = {
    "type": "bert", "norm": "pre", "causal": True, "pool": "last", "final_norm": True,
    "token_types": 0, "relative_positions": 0, "class_tokens": 1,
}  # fmt: skip


def clip_problems(model: Exported) -> Iterator[str]:
    """Of CLIP's two towers, whoever holds them."""
    for kind, tower in (("image", CLIP_IMAGE), ("text", CLIP_TEXT)):
        part = model.of(kind)
        yield from _field(part, kind)
        yield from _tower(part, tower)
        yield from _head(part, PROJECTED)
        if part.head.dim is None:
            yield f"config.fields.{part.name}.head.dim None (CLIP has a projection)"
    image, text = (model.of(kind).head.dim for kind in ("image", "text"))
    if image != text:
        yield f"projections of {image} and {text} dimensions"
    yield from unlike("config", model.config, {"topology": UNIT})


def _clip_problems(model: Exported) -> Iterator[str]:
    yield from clip_problems(model)
    if ends(model)[1] == 2:
        yield "the end token 2, a number that CLIPModel takes for the largest id"


def _clip_config(model: Exported) -> dict[str, Any]:
    image, text = model.of("image"), model.of("text")
    (start, end), dim = ends(model), text.head.dim
    return {
        "model_type": "clip",
        "projection_dim": dim,
        "text_config": {
            **_layers(text.tower),
            "model_type": "clip_text_model",
            "vocab_size": text.params["token_embedding"].shape[0],
            "max_position_embeddings": text.positions,
            "projection_dim": dim,
            "bos_token_id": start,
            "eos_token_id": end,
            "pad_token_id": model.tokenizer.pad_id,
        },
        "vision_config": {
            **_layers(image.tower),
            "model_type": "clip_vision_model",
            "image_size": image.field.size,
            "patch_size": image.tower.patch,
            "num_channels": 3,
            "projection_dim": dim,
        },
    }


def two_towers(
    model: Exported, image: NameTable, text: NameTable, heads: Mapping[str, Callable[[Any], Any]]
) -> Flat:
    """The weights of both of CLIP's towers with their projections and the logit scale.

    Args:
      model: of CLIP's form.
      image: names of the vision tower.
      text: of the text tower.
      heads: name of the image's projection, then that of the text's -> from our layout to theirs.
    """
    scale = np.log(LogitScale().init) if model.logit_scale is None else model.logit_scale
    found = {**image.to_theirs(model.of("image").params), **text.to_theirs(model.of("text").params)}
    for modality, (name, layout) in zip(("image", "text"), heads.items(), strict=True):
        found[name] = layout(model.of(modality).head_params["kernel"])
    return {**found, "logit_scale": np.asarray(scale, np.float32)}


def _clip_arrays(model: Exported) -> Flat:
    heads = {"visual_projection.weight": np.transpose, "text_projection.weight": np.transpose}
    return two_towers(model, image_names.HF_CLIP_IMAGE, text_names.HF_CLIP_TEXT, heads)


BERT = Form("BertModel", ("text",), _bare_bert_problems, _bare_bert_config, bert_arrays)
MASKED = Form("BertForMaskedLM", ("text",), masked_problems, _masked_config, _masked_arrays)
VIT = Form("ViTModel", ("image",), _vit_problems, _vit_config, _vit_arrays)
RESNET = Form("ResNetModel", ("image",), _resnet_problems, _resnet_config, _resnet_arrays)
CLIP = Form("CLIPModel", ("image", "text"), _clip_problems, _clip_config, _clip_arrays)
