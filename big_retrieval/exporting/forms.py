"""Architectures of transformers for the encoders of a model: limits, config and weights."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.exporting.parts import Encoding, Exported, unlike
from big_retrieval.exporting.target import HIDDEN_ACT
from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.names import NameTable
from big_retrieval.interop.source import Flat

PROJECTION = {"type": "projection", "spheres": None}
DENSE = ("sphere", "oblique", "inner")  # with one token, "oblique" equals "sphere"


@dataclass(frozen=True)
class Form:
    """An architecture of transformers."""

    name: str  # class
    problems: Callable[[Exported], Iterator[str]]  # see `ExportTarget.problems`
    config: Callable[[Exported], dict[str, Any]]  # config.json without `architectures`
    arrays: Callable[[Exported], Flat]  # weights by their names in transformers


def encoder_problems(
    encoding: Encoding, modality: str, tower: Mapping[str, Any], head: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the keys of a field, its tower and its head that differ, see `unlike`."""
    yield from unlike(f"config.fields.{encoding.name}", encoding.field, {"type": modality})
    yield from unlike(f"config.towers.{encoding.tower_name}", encoding.tower, tower)
    yield from unlike(f"config.fields.{encoding.name}.head", encoding.head, head)


def rename_params(table: NameTable, params: Flat) -> Flat:
    """Returns all parameters under the names of a table.

    Raises:
      ValueError: the table has no name for a parameter: `problems` is incomplete.
    """
    arrays = table.to_source(params)
    lost = set(params) - {path for _, path, _ in table.to_jax(arrays)}
    if lost:
        raise ValueError(f"no name for {', '.join(sorted(lost))}")
    return arrays


def layers(tower: Any) -> dict[str, Any]:
    """Returns the configuration that all transformers share."""
    return {
        "hidden_size": tower.width,
        "intermediate_size": tower.mlp,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.heads,
        "hidden_act": HIDDEN_ACT[tower.activation],
        "layer_norm_eps": tower.epsilon,
    }


def keys_for_import(model: Exported, **more: Any) -> dict[str, Any]:
    """Returns keys for an import: settings that these architectures do not store."""
    return {"big_retrieval": {"normalise": model.normalises(), **more}}


# ---- BERT

BERT_TOWER = {
    "type": "bert", "norm": "post", "causal": False, "relative_positions": 0, "class_tokens": 1,
}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert_problems(model: Exported, bare: bool = False) -> Iterator[str]:
    """Yields problems of a dense text encoder; a `bare` one has no final norm and projection."""
    encoding = model.encoding_of("text")
    tower = BERT_TOWER | ({"final_norm": False} if bare else {})
    head = PROJECTION | ({"dim": None} if bare else {})
    yield from encoder_problems(encoding, "text", tower, head)
    if encoding.pool not in ("first", "mean"):
        yield f"the pooling {encoding.pool!r} (only 'first' or 'mean')"
    yield from unlike("config", model.config, {"topology": DENSE})


def bert_config(model: Exported) -> dict[str, Any]:
    """Returns config.json of the encoder, without the pooling."""
    encoding = model.encoding_of("text")
    return {
        **layers(encoding.tower),
        **NO_DROPOUT,
        "model_type": "bert",
        "vocab_size": encoding.params["token_embedding"].shape[0],
        "max_position_embeddings": encoding.positions,
        "type_vocab_size": max(2, encoding.tower.token_types),
        "pad_token_id": model.tokenizer.pad_id,
        "position_embedding_type": "absolute",
    }


def bert_arrays(model: Exported) -> Flat:
    """Returns the weights of the encoder, without a norm after the last layer."""
    norm = ("ln_final/scale", "ln_final/bias")
    params = {name: x for name, x in model.encoding_of("text").params.items() if name not in norm}
    width = params["token_embedding"].shape[1]
    types = params.get("token_type_embedding", np.zeros((0, width), np.float32))
    more = np.zeros((max(0, 2 - len(types)), width), np.float32)  # BERT has at least two
    params["token_type_embedding"] = np.concatenate([types, more])
    return rename_params(text_names.BERT, params)


def masked_problems(
    model: Exported, activations: tuple[str, ...] = ("log1p_relu",)
) -> Iterator[str]:
    """Yields problems of a lexical encoder as a masked-language model."""
    encoding = model.encoding_of("text")
    tower = encoding.tower
    head = {
        "type": "lexical", "layer_norm": True, "transform": getattr(tower, "activation", ""),
        "epsilon": getattr(tower, "epsilon", 0), "pooling": "max", "pool_padding": False,
        "terms": "all", "activation": activations, "normalise": False, "top_k": None,
    }  # fmt: skip
    yield from encoder_problems(encoding, "text", {**BERT_TOWER, "final_norm": False}, head)
    yield from unlike("config", model.config, {"topology": "inner"})


def _masked_config(model: Exported) -> dict[str, Any]:
    return {**bert_config(model), "tie_word_embeddings": model.encoding_of("text").head.tied}


def _masked_arrays(model: Exported) -> Flat:
    encoding = model.encoding_of("text")
    head = dict(encoding.head_params)
    head.setdefault("bias", np.zeros(encoding.params["token_embedding"].shape[0], np.float32))
    arrays = {f"bert.{name}": array for name, array in bert_arrays(model).items()}
    arrays |= rename_params(text_names.BERT_MASKED.table, head)
    if not encoding.head.tied:
        arrays["cls.predictions.decoder.bias"] = head["bias"]
    return arrays


# ---- Vision


def _image_problems(model: Exported, tower: Mapping[str, Any]) -> Iterator[str]:
    head = {**PROJECTION, "dim": None, "pool": "tower"}
    yield from encoder_problems(model.encoding_of("image"), "image", tower, head)
    yield from unlike("config", model.config, {"topology": DENSE})


def _vit_config(model: Exported) -> dict[str, Any]:
    encoding = model.encoding_of("image")
    return {
        **layers(encoding.tower),
        **keys_for_import(model),
        **NO_DROPOUT,
        "model_type": "vit",
        "image_size": encoding.field.size,
        "patch_size": encoding.tower.patch,
        "num_channels": 3,
        "qkv_bias": True,
    }


def _vit_arrays(model: Exported) -> Flat:
    params = dict(model.encoding_of("image").params)
    width = params["patch_embedding/kernel"].shape[1]
    params.setdefault("patch_embedding/bias", np.zeros(width, np.float32))
    return rename_params(image_names.HF_VIT, params)


def _resnet_config(model: Exported) -> dict[str, Any]:
    tower = model.encoding_of("image").tower
    wider = 4 if tower.bottleneck else 1
    return {
        **keys_for_import(model),
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
    encoding = model.encoding_of("image")
    averages = rename_params(image_names.HF_RESNET_STATS, encoding.stats)
    return {**rename_params(image_names.HF_RESNET, encoding.params), **averages}


VIT_TOWER = {"type": "vit", "class_tokens": 1, "pool": "first", "norm_first": False}
BERT = Form(
    "BertModel",
    functools.partial(bert_problems, bare=True),
    lambda model: {
        **bert_config(model),
        **keys_for_import(model, pool=model.encoding_of("text").pool),
    },
    bert_arrays,
)
MASKED = Form("BertForMaskedLM", masked_problems, _masked_config, _masked_arrays)
VIT = Form(
    "ViTModel", functools.partial(_image_problems, tower=VIT_TOWER), _vit_config, _vit_arrays
)
RESNET = Form(
    "ResNetModel",
    functools.partial(_image_problems, tower={"type": "resnet"}),
    _resnet_config,
    _resnet_arrays,
)
