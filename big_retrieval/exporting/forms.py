"""Architectures of transformers for the encoders of a model: limits, config and weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.exporting.parts import Encoding, Exported, unlike
from big_retrieval.exporting.target import HIDDEN_ACT
from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.names import NameTable
from big_retrieval.interop.source import Flat

VECTOR = {"type": "projection", "dim": None, "spheres": None}  # no projection
DENSE = ("sphere", "oblique", "inner")  # one token's oblique embedding is a sphere's


@dataclass(frozen=True)
class Form:
    """An architecture.

    Attributes:
      name: its class in transformers.
      problems: what it cannot hold, see `ExportTarget.problems`.
      config: its config.json, without `architectures`.
      arrays: its weights, by their names.
    """

    name: str
    problems: Callable[[Exported], Iterator[str]]
    config: Callable[[Exported], dict[str, Any]]
    arrays: Callable[[Exported], Flat]

    def whole_config(self, model: Exported) -> dict[str, Any]:
        """Returns config.json."""
        return {"architectures": [self.name], "dtype": "float32", **self.config(model)}


def check_tower(part: Encoding, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of a tower that differ from `wanted`, see `unlike`."""
    yield from unlike(f"config.towers.{part.tower_name}", part.tower, wanted)


def check_head(part: Encoding, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of a head that differ from `wanted`."""
    yield from unlike(f"config.fields.{part.name}.head", part.head, wanted)


def check_field(part: Encoding, kind: str) -> Iterator[str]:
    """Yields the type of a field if it is not "text" or "image" as given."""
    yield from unlike(f"config.fields.{part.name}", part.field, {"type": kind})


def named(table: NameTable, params: Flat) -> Flat:
    """Returns all parameters under the names of a table.

    Raises:
      ValueError: the table has no name for a parameter: `problems` is incomplete.
    """
    found = table.to_theirs(params)
    lost = set(params) - {path for _, path, _ in table.to_ours(found)}
    if lost:
        raise ValueError(f"no name for {', '.join(sorted(lost))}")
    return found


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


def not_said(model: Exported, **more: Any) -> dict[str, Any]:
    """Returns what these architectures do not store, for an import."""
    return {"big_retrieval": {"normalise": model.normalises(), **more}}


# ---- BERT

BERT_TOWER = {
    "type": "bert", "norm": "post", "causal": False, "relative_positions": 0, "class_tokens": 1,
}  # fmt: skip
NO_NORM = {"final_norm": False}


def bert_problems(model: Exported) -> Iterator[str]:
    """Yields problems of the encoder of a dense text model, up to its last layer."""
    part = model.of("text")
    yield from check_field(part, "text")
    yield from check_tower(part, BERT_TOWER)
    yield from check_head(part, {"type": "projection", "spheres": None})
    if part.pool not in ("first", "mean"):
        yield f"the pooling {part.pool!r} (only 'first' or 'mean')"
    yield from unlike("config", model.config, {"topology": DENSE})


def _bare_bert_problems(model: Exported) -> Iterator[str]:
    yield from bert_problems(model)
    yield from check_tower(model.of("text"), NO_NORM)
    yield from check_head(model.of("text"), VECTOR)


def bert_config(model: Exported) -> dict[str, Any]:
    """Returns config.json of the encoder, without the pooling."""
    part = model.of("text")
    rows, _ = part.params["token_embedding"].shape
    return {
        **layers(part.tower),
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
    return {**bert_config(model), **not_said(model, pool=model.of("text").pool)}


def bert_arrays(model: Exported) -> Flat:
    """Returns the weights of the encoder, without a norm after the last layer."""
    norm = ("ln_final/scale", "ln_final/bias")
    params = {name: x for name, x in model.of("text").params.items() if name not in norm}
    width = params["token_embedding"].shape[1]
    types = params.get("token_type_embedding", np.zeros((0, width), np.float32))
    more = np.zeros((max(0, 2 - len(types)), width), np.float32)  # ours has fewer, or none
    params["token_type_embedding"] = np.concatenate([types, more])
    return named(text_names.BERT, params)


def masked_problems(
    model: Exported, activations: tuple[str, ...] = ("log1p_relu",)
) -> Iterator[str]:
    """Yields problems of a lexical encoder as a masked-language model."""
    part = model.of("text")
    yield from check_field(part, "text")
    yield from check_tower(part, {**BERT_TOWER, **NO_NORM})
    yield from check_head(
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
    found |= named(text_names.BERT_MASKED.table, head)
    if not part.head.tied:
        found["cls.predictions.decoder.bias"] = head["bias"]
    return found


# ---- Vision


def _image_problems(model: Exported, tower: Mapping[str, Any]) -> Iterator[str]:
    part = model.of("image")
    yield from check_field(part, "image")
    yield from check_tower(part, tower)
    yield from check_head(part, {**VECTOR, "pool": "tower"})
    yield from unlike("config", model.config, {"topology": DENSE})


def _vit_problems(model: Exported) -> Iterator[str]:
    wanted = {"type": "vit", "class_tokens": 1, "pool": "first", "norm_first": False}
    yield from _image_problems(model, wanted)


def _vit_config(model: Exported) -> dict[str, Any]:
    part = model.of("image")
    return {
        **layers(part.tower),
        **not_said(model),
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
    return named(image_names.HF_VIT, params)


def _resnet_problems(model: Exported) -> Iterator[str]:
    yield from _image_problems(model, {"type": "resnet"})


def _resnet_config(model: Exported) -> dict[str, Any]:
    tower = model.of("image").tower
    wider = 4 if tower.bottleneck else 1
    return {
        **not_said(model),
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
        **named(image_names.HF_RESNET, part.params),
        **named(image_names.HF_RESNET_STATS, part.stats),
    }


BERT = Form("BertModel", _bare_bert_problems, _bare_bert_config, bert_arrays)
MASKED = Form("BertForMaskedLM", masked_problems, _masked_config, _masked_arrays)
VIT = Form("ViTModel", _vit_problems, _vit_config, _vit_arrays)
RESNET = Form("ResNetModel", _resnet_problems, _resnet_config, _resnet_arrays)
