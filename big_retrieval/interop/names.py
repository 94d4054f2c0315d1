"""Tables of names: how a checkpoint of another library calls what our parameters are.

A table is data and reads in both directions. In names and paths {i} stands for a layer's number
(and {j} for a second one). `ours` is below the tower; {qkv} stands for query, key, value, which one
array of theirs holds stacked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from big_retrieval.interop.layouts import LAYOUTS

QKV = ("query", "key", "value")


@dataclass(frozen=True)
class Entry:
    """One line of a table.

    Attributes:
      theirs: a name in the checkpoint, without the table's prefix.
      ours: the path below the tower.
      layout: of `layouts.LAYOUTS`.
    """

    theirs: str
    ours: str
    layout: str = "same"

    def paths(self) -> tuple[str, ...]:
        """Our paths, one or three."""
        if "{qkv}" not in self.ours:
            return (self.ours,)
        return tuple(self.ours.replace("{qkv}", each) for each in QKV)


@dataclass(frozen=True)
class Table:
    """Entries of one tower or head.

    Attributes:
      entries: the lines.
      unused: regular expression of names that belong to the tower and that we have no use for
        (buffers, poolers, classifiers).
    """

    entries: tuple[Entry, ...]
    unused: str = "$."
    _patterns: list[tuple[re.Pattern[str], Entry]] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self._patterns.extend((_pattern(entry.theirs), entry) for entry in self.entries)

    def find(self, name: str) -> tuple[Entry, dict[str, str]] | None:
        """The entry of one of their names, with the numbers of its layers."""
        for pattern, entry in self._patterns:
            if match := pattern.fullmatch(name):
                return entry, match.groupdict()
        return None

    def is_unused(self, name: str) -> bool:
        """Whether a name is known to be of no use."""
        return re.fullmatch(self.unused, name) is not None

    def to_ours(self, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
        """(their name, our path, array in our layout) of all names that the table knows."""
        for name, array in arrays.items():
            if (found := self.find(name)) is None:
                continue
            entry, numbers = found
            parts = LAYOUTS[entry.layout].ours(np.asarray(array))
            for path, part in zip(entry.paths(), parts, strict=True):
                yield name, path.format(**numbers), part

    def to_theirs(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All of our parameters that the table knows, under their names and in their layout."""
        found: dict[str, np.ndarray] = {}
        for entry in self.entries:
            first, *rest = entry.paths()
            for path in params:
                if (match := _pattern(first).fullmatch(path)) is None:
                    continue
                numbers = match.groupdict()
                arrays = [params[path], *(params[other.format(**numbers)] for other in rest)]
                found[entry.theirs.format(**numbers)] = LAYOUTS[entry.layout].theirs(arrays)
        return found


def _pattern(name: str) -> re.Pattern[str]:
    """A name with {i} and {j} as a regular expression with these groups."""
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def _module(theirs: str, ours: str, layout: str, names: tuple[str, str]) -> Iterator[Entry]:
    yield Entry(f"{theirs}.weight", f"{ours}/{names[0]}", layout)
    yield Entry(f"{theirs}.bias", f"{ours}/{names[1]}")


def linear(modules: Mapping[str, str]) -> Iterator[Entry]:
    """Linear layers with bias: their module -> our module."""
    for theirs, ours in modules.items():
        yield from _module(theirs, ours, "linear", ("kernel", "bias"))


def norms(modules: Mapping[str, str]) -> Iterator[Entry]:
    """Layer norms: their module -> our module."""
    for theirs, ours in modules.items():
        yield from _module(theirs, ours, "same", ("scale", "bias"))


def _table(*parts: Iterable[Entry], unused: str = "$.") -> Table:
    return Table(tuple(entry for part in parts for entry in part), unused)


def _clip_blocks(prefix: str) -> list[Entry]:
    """open_clip's residual blocks, in both towers."""
    block, ours = f"{prefix}transformer.resblocks.{{i}}", "layers_{i}"
    return [
        Entry(f"{block}.attn.in_proj_weight", f"{ours}/attention/{{qkv}}/kernel", "qkv"),
        Entry(f"{block}.attn.in_proj_bias", f"{ours}/attention/{{qkv}}/bias", "qkv_bias"),
        *linear(
            {
                f"{block}.attn.out_proj": f"{ours}/attention/out",
                f"{block}.mlp.c_fc": f"{ours}/mlp/fc1",
                f"{block}.mlp.c_proj": f"{ours}/mlp/fc2",
            }
        ),
        *norms({f"{block}.ln_1": f"{ours}/ln_1", f"{block}.ln_2": f"{ours}/ln_2"}),
    ]


# ---- Vision

OPEN_CLIP_IMAGE = _table(
    [
        Entry("visual.class_embedding", "class_embedding", "row"),
        Entry("visual.positional_embedding", "position_embedding"),
        Entry("visual.conv1.weight", "patch_embedding/kernel", "patches"),
    ],
    norms({"visual.ln_pre": "ln_pre", "visual.ln_post": "ln_post"}),
    _clip_blocks("visual."),
)

# clip-mtob: several class tokens, hence a table of them
MTOB_IMAGE = _table(
    [
        entry if entry.layout != "row" else Entry(entry.theirs, entry.ours)
        for entry in OPEN_CLIP_IMAGE.entries
    ]
)

_HF_CLIP_BLOCK = {
    "self_attn.q_proj": "attention/query",
    "self_attn.k_proj": "attention/key",
    "self_attn.v_proj": "attention/value",
    "self_attn.out_proj": "attention/out",
    "mlp.fc1": "mlp/fc1",
    "mlp.fc2": "mlp/fc2",
}


def _hf_clip_blocks(model: str) -> list[Entry]:
    block, ours = f"{model}.encoder.layers.{{i}}", "layers_{i}"
    pairs = {f"{block}.{a}": f"{ours}/{b}" for a, b in _HF_CLIP_BLOCK.items()}
    lns = {f"{block}.layer_norm1": f"{ours}/ln_1", f"{block}.layer_norm2": f"{ours}/ln_2"}
    return [*linear(pairs), *norms(lns)]


HF_CLIP_IMAGE = _table(
    [
        Entry("vision_model.embeddings.class_embedding", "class_embedding", "row"),
        Entry("vision_model.embeddings.position_embedding.weight", "position_embedding"),
        Entry(
            "vision_model.embeddings.patch_embedding.weight", "patch_embedding/kernel", "patches"
        ),
    ],
    norms(
        {"vision_model.pre_layrnorm": "ln_pre", "vision_model.post_layernorm": "ln_post"}
    ),  # their spelling
    _hf_clip_blocks("vision_model"),
    unused=r".*\.position_ids",
)

HF_VIT = _table(
    [
        Entry("embeddings.cls_token", "class_embedding", "batch"),
        Entry("embeddings.position_embeddings", "position_embedding", "batch"),
        Entry("embeddings.patch_embeddings.projection.weight", "patch_embedding/kernel", "patches"),
        Entry("embeddings.patch_embeddings.projection.bias", "patch_embedding/bias"),
    ],
    linear(
        {
            "encoder.layer.{i}.attention.attention.query": "layers_{i}/attention/query",
            "encoder.layer.{i}.attention.attention.key": "layers_{i}/attention/key",
            "encoder.layer.{i}.attention.attention.value": "layers_{i}/attention/value",
            "encoder.layer.{i}.attention.output.dense": "layers_{i}/attention/out",
            "encoder.layer.{i}.intermediate.dense": "layers_{i}/mlp/fc1",
            "encoder.layer.{i}.output.dense": "layers_{i}/mlp/fc2",
        }
    ),
    norms(
        {
            "encoder.layer.{i}.layernorm_before": "layers_{i}/ln_1",
            "encoder.layer.{i}.layernorm_after": "layers_{i}/ln_2",
            "layernorm": "ln_post",
        }
    ),
    unused=r"pooler\..*|classifier\..*|embeddings\.mask_token",
)

TIMM_VIT = _table(
    [
        Entry("cls_token", "class_embedding", "batch"),
        Entry("pos_embed", "position_embedding", "batch"),
        Entry("patch_embed.proj.weight", "patch_embedding/kernel", "patches"),
        Entry("patch_embed.proj.bias", "patch_embedding/bias"),
        Entry("blocks.{i}.attn.qkv.weight", "layers_{i}/attention/{qkv}/kernel", "qkv"),
        Entry("blocks.{i}.attn.qkv.bias", "layers_{i}/attention/{qkv}/bias", "qkv_bias"),
    ],
    linear(
        {
            "blocks.{i}.attn.proj": "layers_{i}/attention/out",
            "blocks.{i}.mlp.fc1": "layers_{i}/mlp/fc1",
            "blocks.{i}.mlp.fc2": "layers_{i}/mlp/fc2",
        }
    ),
    norms(
        {
            "blocks.{i}.norm1": "layers_{i}/ln_1",
            "blocks.{i}.norm2": "layers_{i}/ln_2",
            "norm": "ln_post",
            "norm_pre": "ln_pre",
        }
    ),
    unused=r"head\..*",
)

_BV_BLOCK = "Transformer/encoderblock_{i}/"
_BV_ATTENTION = _BV_BLOCK + "MultiHeadDotProductAttention_0/"

BIG_VISION = _table(
    [
        Entry("cls", "class_embedding", "batch"),
        Entry("pos_embedding", "position_embedding", "batch"),
        Entry("embedding/kernel", "patch_embedding/kernel", "flat_patches"),
        Entry("embedding/bias", "patch_embedding/bias"),
        *(
            Entry(f"{_BV_ATTENTION}{name}/kernel", f"layers_{{i}}/attention/{name}/kernel", layout)
            for name, layout in [*((each, "heads_in") for each in QKV), ("out", "heads_out")]
        ),
        *(
            Entry(f"{_BV_ATTENTION}{name}/bias", f"layers_{{i}}/attention/{name}/bias", layout)
            for name, layout in [*((each, "heads_bias") for each in QKV), ("out", "same")]
        ),
        *(
            Entry(f"{_BV_BLOCK}{theirs}/{name}", f"layers_{{i}}/{ours}/{name}")
            for theirs, ours, names in (
                ("LayerNorm_0", "ln_1", ("scale", "bias")),
                ("LayerNorm_1", "ln_2", ("scale", "bias")),
                ("MlpBlock_0/Dense_0", "mlp/fc1", ("kernel", "bias")),
                ("MlpBlock_0/Dense_1", "mlp/fc2", ("kernel", "bias")),
            )
            for name in names
        ),
        Entry("Transformer/encoder_norm/scale", "ln_post/scale"),
        Entry("Transformer/encoder_norm/bias", "ln_post/bias"),
    ],
    unused=r"head/.*|pre_logits/.*",
)

_RESNET_MODULES = {  # convolutions and norms, theirs -> ours
    "conv": {
        "conv1": "conv1",
        "layer{i}.{j}.conv{k}": "layer{i}_{j}/conv{k}",
        "layer{i}.{j}.downsample.0": "layer{i}_{j}/downsample_conv",
    },
    "norm": {
        "bn1": "bn1",
        "layer{i}.{j}.bn{k}": "layer{i}_{j}/bn{k}",
        "layer{i}.{j}.downsample.1": "layer{i}_{j}/downsample_bn",
    },
}
RESNET = _table(
    [Entry(f"{a}.weight", f"{b}/kernel", "conv") for a, b in _RESNET_MODULES["conv"].items()],
    norms(_RESNET_MODULES["norm"]),
    unused=r"fc\..*|.*\.num_batches_tracked",
)
RESNET_STATS = _table(
    [
        Entry(f"{a}.running_{name}", f"{b}/{name}")
        for a, b in _RESNET_MODULES["norm"].items()
        for name in ("mean", "var")
    ]
)

# ---- Text

OPEN_CLIP_TEXT = _table(
    [
        Entry("token_embedding.weight", "token_embedding"),
        Entry("positional_embedding", "position_embedding"),
    ],
    norms({"ln_final": "ln_final"}),
    _clip_blocks(""),
    unused="attn_mask",
)

MTOB_TEXT = _table(
    [
        Entry("token_embedding.weight", "token_embedding"),
        Entry("positional_embedding", "position_embedding"),
        Entry(
            "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
            "layers_{i}/attention/{qkv}/kernel",
            "qkv",
        ),
        Entry(
            "transformer.encoder.layers.{i}.self_attn.in_proj_bias",
            "layers_{i}/attention/{qkv}/bias",
            "qkv_bias",
        ),
    ],
    linear(
        {
            "transformer.encoder.layers.{i}.self_attn.out_proj": "layers_{i}/attention/out",
            "transformer.encoder.layers.{i}.linear1": "layers_{i}/mlp/fc1",
            "transformer.encoder.layers.{i}.linear2": "layers_{i}/mlp/fc2",
        }
    ),
    norms(
        {
            "ln_embedding": "ln_embedding",
            "ln_final": "ln_final",
            "transformer.encoder.layers.{i}.norm1": "layers_{i}/ln_1",
            "transformer.encoder.layers.{i}.norm2": "layers_{i}/ln_2",
        }
    ),
)

HF_CLIP_TEXT = _table(
    [
        Entry("text_model.embeddings.token_embedding.weight", "token_embedding"),
        Entry("text_model.embeddings.position_embedding.weight", "position_embedding"),
    ],
    norms({"text_model.final_layer_norm": "ln_final"}),
    _hf_clip_blocks("text_model"),
    unused=r".*\.position_ids",
)


def _bert(positions: str) -> Table:
    """BERT and its kin; RoBERTa differs in where its positions begin."""
    layer = "encoder.layer.{i}"
    return _table(
        [
            Entry("embeddings.word_embeddings.weight", "token_embedding"),
            Entry("embeddings.position_embeddings.weight", "position_embedding", positions),
            Entry("embeddings.token_type_embeddings.weight", "token_type_embedding"),
        ],
        linear(
            {
                f"{layer}.attention.self.query": "layers_{i}/attention/query",
                f"{layer}.attention.self.key": "layers_{i}/attention/key",
                f"{layer}.attention.self.value": "layers_{i}/attention/value",
                f"{layer}.attention.output.dense": "layers_{i}/attention/out",
                f"{layer}.intermediate.dense": "layers_{i}/mlp/fc1",
                f"{layer}.output.dense": "layers_{i}/mlp/fc2",
            }
        ),
        norms(
            {
                "embeddings.LayerNorm": "ln_embedding",
                f"{layer}.attention.output.LayerNorm": "layers_{i}/ln_1",
                f"{layer}.output.LayerNorm": "layers_{i}/ln_2",
            }
        ),
        unused=r"pooler\..*|embeddings\.(position_ids|token_type_ids)",
    )


BERT = _bert("same")
ROBERTA = _bert("from_two")

DISTILBERT = _table(
    [
        Entry("embeddings.word_embeddings.weight", "token_embedding"),
        Entry("embeddings.position_embeddings.weight", "position_embedding"),
    ],
    linear(
        {
            "transformer.layer.{i}.attention.q_lin": "layers_{i}/attention/query",
            "transformer.layer.{i}.attention.k_lin": "layers_{i}/attention/key",
            "transformer.layer.{i}.attention.v_lin": "layers_{i}/attention/value",
            "transformer.layer.{i}.attention.out_lin": "layers_{i}/attention/out",
            "transformer.layer.{i}.ffn.lin1": "layers_{i}/mlp/fc1",
            "transformer.layer.{i}.ffn.lin2": "layers_{i}/mlp/fc2",
        }
    ),
    norms(
        {
            "embeddings.LayerNorm": "ln_embedding",
            "transformer.layer.{i}.sa_layer_norm": "layers_{i}/ln_1",
            "transformer.layer.{i}.output_layer_norm": "layers_{i}/ln_2",
        }
    ),
)

MPNET = _table(
    [
        Entry("embeddings.word_embeddings.weight", "token_embedding"),
        Entry("embeddings.position_embeddings.weight", "position_embedding", "from_two"),
        Entry("encoder.relative_attention_bias.weight", "relative_bias"),
    ],
    linear(
        {
            "encoder.layer.{i}.attention.attn.q": "layers_{i}/attention/query",
            "encoder.layer.{i}.attention.attn.k": "layers_{i}/attention/key",
            "encoder.layer.{i}.attention.attn.v": "layers_{i}/attention/value",
            "encoder.layer.{i}.attention.attn.o": "layers_{i}/attention/out",
            "encoder.layer.{i}.intermediate.dense": "layers_{i}/mlp/fc1",
            "encoder.layer.{i}.output.dense": "layers_{i}/mlp/fc2",
        }
    ),
    norms(
        {
            "embeddings.LayerNorm": "ln_embedding",
            "encoder.layer.{i}.attention.LayerNorm": "layers_{i}/ln_1",
            "encoder.layer.{i}.output.LayerNorm": "layers_{i}/ln_2",
        }
    ),
    unused=r"pooler\..*|embeddings\.position_ids",
)
