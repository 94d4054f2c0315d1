"""Architectures of other libraries, recognized by the names of a checkpoint."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from big_retrieval.interop import image_names, text_names
from big_retrieval.interop.names import NameEntry, NameTable
from big_retrieval.interop.pixels import IMAGENET, Pixels
from big_retrieval.interop.text_names import Masked


@dataclass(frozen=True)
class Kind:
    """One architecture as one library saves it."""

    name: str
    side: Literal["image", "text"]
    sign: str  # a name that all its checkpoints have, after a prefix
    table: NameTable
    head: NameEntry | None = None  # projection, without the prefix
    # Head of two layers (`config.Mlp` with GELU) that may replace the projection.
    mlp: tuple[NameEntry, ...] = ()
    prefixes: tuple[str, ...] = ("",)  # possible prefixes of all names
    # Attributes of the tower; settings files may change only `usual`.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    head_width: int | None = 64  # None if a settings file must give the heads
    masked: Masked | None = None  # masked-language head that it may have
    stats: NameTable | None = None  # running averages of batch norms
    pixels: Pixels | None = None  # without a settings file; None for CLIP's

    def prefix(self, arrays: Mapping[str, np.ndarray]) -> str | None:
        """Returns the prefix of the sign in a checkpoint; None without the sign."""
        return next((prefix for prefix in self.prefixes if prefix + self.sign in arrays), None)


_CAUSAL = {"causal": True, "pool": "last"}
_EXACT = {"activation": "gelu", "epsilon": 1e-5}
_BERT = {"activation": "gelu", "epsilon": 1e-12}
_BERT_PREFIXES = ("", "bert.", "roberta.", "0.auto_model.", "auto_model.", "0.model.", "model.")
_HF_CLIP = {"activation": "quick_gelu", "epsilon": 1e-5}

OPEN_CLIP_IMAGE = Kind(  # of clip-mtob, too
    "open_clip's vision transformer",
    "image",
    "visual.class_embedding",
    image_names.OPEN_CLIP_IMAGE,
    head=NameEntry("visual.proj", "kernel"),
    usual=_EXACT,
)
MTOB_TEXT = Kind(
    "clip-mtob's text tower",
    "text",
    "transformer.encoder.layers.0.self_attn.in_proj_weight",
    text_names.MTOB_TEXT,
    head=NameEntry("text_projection", "kernel"),
    usual=_EXACT,
)
_OPEN_CLIP_BERT = Kind(
    "open_clip's BERT",
    "text",
    text_names.OPEN_CLIP_SIGN,
    text_names.OPEN_CLIP_BERT,
    head=NameEntry("proj.weight", "kernel", "linear"),
    mlp=text_names.OPEN_CLIP_MLP,
    prefixes=("text.",),
    usual=_BERT | {"pool": "mean"},
)

KINDS = (
    OPEN_CLIP_IMAGE,
    MTOB_TEXT,
    Kind(
        "open_clip's text transformer",
        "text",
        "transformer.resblocks.0.attn.in_proj_weight",
        text_names.OPEN_CLIP_TEXT,
        head=NameEntry("text_projection", "kernel"),
        prefixes=("", "text."),
        fixed=_CAUSAL,
        usual=_EXACT,
    ),
    Kind(
        "Hugging Face CLIP's vision transformer",
        "image",
        "vision_model.embeddings.class_embedding",
        image_names.HF_CLIP_IMAGE,
        head=NameEntry("visual_projection.weight", "kernel", "linear"),
        usual=_HF_CLIP,
    ),
    Kind(
        "Hugging Face CLIP's text transformer",
        "text",
        "text_model.embeddings.token_embedding.weight",
        text_names.HF_CLIP_TEXT,
        head=NameEntry("text_projection.weight", "kernel", "linear"),
        fixed=_CAUSAL,
        usual=_HF_CLIP,
    ),
    Kind(
        "Hugging Face's ViT",
        "image",
        "embeddings.patch_embeddings.projection.weight",
        image_names.HF_VIT,
        prefixes=("", "vit."),
        usual=_BERT,
    ),
    Kind(
        "timm's vision transformer",
        "image",
        "patch_embed.proj.weight",
        image_names.TIMM_VIT,
        prefixes=("", "visual.trunk."),
        usual={"activation": "gelu", "epsilon": 1e-6},
    ),
    Kind(
        "torchvision's or timm's ResNet",
        "image",
        "layer1.0.conv1.weight",
        image_names.RESNET,
        prefixes=("", "visual.trunk."),
        stats=image_names.RESNET_STATS,
        pixels=IMAGENET,
    ),
    Kind(
        "Hugging Face's ResNet",
        "image",
        "embedder.embedder.convolution.weight",
        image_names.HF_RESNET,
        prefixes=("", "resnet."),
        stats=image_names.HF_RESNET_STATS,
        pixels=IMAGENET,
    ),
    Kind(
        "big_vision's ViT",
        "image",
        "embedding/kernel",
        image_names.BIG_VISION,
        prefixes=("", "params/", "img/", "params/img/"),
        usual={"activation": "gelu_tanh", "epsilon": 1e-6},
    ),
    _OPEN_CLIP_BERT,
    Kind(
        "MPNet",
        "text",
        "encoder.relative_attention_bias.weight",
        text_names.MPNET,
        prefixes=("mpnet.", *_BERT_PREFIXES),
        usual=_EXACT,
        head_width=None,
        masked=text_names.ROBERTA_MASKED,
    ),
    Kind(
        "DistilBERT",
        "text",
        "transformer.layer.0.attention.q_lin.weight",
        text_names.DISTILBERT,
        prefixes=("distilbert.", *_BERT_PREFIXES),
        usual=_BERT,
        head_width=None,
        masked=text_names.DISTILBERT_MASKED,
    ),
    Kind(
        "BERT",
        "text",
        "encoder.layer.0.attention.self.query.weight",
        text_names.BERT,
        prefixes=_BERT_PREFIXES,
        usual=_BERT,
        head_width=None,
        masked=text_names.BERT_MASKED,
    ),
)

# RoBERTa has BERT's names; its settings, the prefix, or its two more positions identify it.
ROBERTA = {
    "BERT": dataclasses.replace(
        KINDS[-1],
        name="RoBERTa",
        table=text_names.ROBERTA,
        usual=_EXACT,
        masked=text_names.ROBERTA_MASKED,
    ),
    "open_clip's BERT": dataclasses.replace(
        _OPEN_CLIP_BERT,
        name="open_clip's RoBERTa",
        table=text_names.OPEN_CLIP_ROBERTA,
        usual=_EXACT | {"pool": "mean"},
    ),
}
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl")
LOGIT_SCALES = ("logit_scale", "params/t", "t")  # names of the logarithm of the logit scale


def kinds_of(arrays: Mapping[str, np.ndarray], model_type: str = "") -> Iterator[tuple[Kind, str]]:
    """Yields the towers of a checkpoint, at most one per side, with their prefixes.

    Args:
      model_type: value in a Hugging Face config.json; empty without that file.
    """
    sides: set[str] = set()
    for kind in KINDS:
        prefix = kind.prefix(arrays)
        if prefix is None or kind.side in sides:
            continue
        sides.add(kind.side)
        roberta = model_type in ROBERTA_TYPES or prefix == "roberta."
        if kind.name in ROBERTA and (roberta or _has_roberta_positions(arrays, prefix)):
            kind = ROBERTA[kind.name]
        yield kind, prefix


def _has_roberta_positions(arrays: Mapping[str, np.ndarray], prefix: str) -> bool:
    """Returns True if an open_clip checkpoint without settings has RoBERTa's positions."""
    table = arrays.get(f"{prefix}{text_names.INSIDE}embeddings.position_embeddings.weight")
    return table is not None and table.shape[0] == 514
