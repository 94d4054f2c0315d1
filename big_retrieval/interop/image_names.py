"""Tables of vision towers; see `names`."""

from collections.abc import Mapping

from big_retrieval.interop.names import (
    QKV,
    NameEntry,
    NameTable,
    clip_blocks,
    hf_clip_blocks,
    linear,
    norms,
    table,
)

OPEN_CLIP_IMAGE = table(
    [
        NameEntry("visual.class_embedding", "class_embedding", "row"),
        NameEntry("visual.positional_embedding", "position_embedding"),
        NameEntry("visual.conv1.weight", "patch_embedding/kernel", "patches"),
    ],
    norms({"visual.ln_pre": "ln_pre", "visual.ln_post": "ln_post"}),
    clip_blocks("visual."),
)

# clip-mtob: several class tokens, hence a table of them
MTOB_IMAGE = table(
    [
        entry if entry.layout != "row" else NameEntry(entry.theirs, entry.ours)
        for entry in OPEN_CLIP_IMAGE.entries
    ]
)

HF_CLIP_IMAGE = table(
    [
        NameEntry("vision_model.embeddings.class_embedding", "class_embedding", "row"),
        NameEntry("vision_model.embeddings.position_embedding.weight", "position_embedding"),
        NameEntry(
            "vision_model.embeddings.patch_embedding.weight", "patch_embedding/kernel", "patches"
        ),
    ],
    norms(
        {"vision_model.pre_layrnorm": "ln_pre", "vision_model.post_layernorm": "ln_post"}
    ),  # their spelling
    hf_clip_blocks("vision_model"),
    unused=r".*\.position_ids",
)

HF_VIT = table(
    [
        NameEntry("embeddings.cls_token", "class_embedding", "batch"),
        NameEntry("embeddings.position_embeddings", "position_embedding", "batch"),
        NameEntry(
            "embeddings.patch_embeddings.projection.weight", "patch_embedding/kernel", "patches"
        ),
        NameEntry("embeddings.patch_embeddings.projection.bias", "patch_embedding/bias"),
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

TIMM_VIT = table(
    [
        NameEntry("cls_token", "class_embedding", "batch"),
        NameEntry("pos_embed", "position_embedding", "batch"),
        NameEntry("patch_embed.proj.weight", "patch_embedding/kernel", "patches"),
        NameEntry("patch_embed.proj.bias", "patch_embedding/bias"),
        NameEntry("blocks.{i}.attn.qkv.weight", "layers_{i}/attention/{qkv}/kernel", "qkv"),
        NameEntry("blocks.{i}.attn.qkv.bias", "layers_{i}/attention/{qkv}/bias", "qkv_bias"),
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

BIG_VISION = table(
    [
        NameEntry("cls", "class_embedding", "batch"),
        NameEntry("pos_embedding", "position_embedding", "batch"),
        NameEntry("embedding/kernel", "patch_embedding/kernel", "flat_patches"),
        NameEntry("embedding/bias", "patch_embedding/bias"),
        *(
            NameEntry(
                f"{_BV_ATTENTION}{name}/kernel", f"layers_{{i}}/attention/{name}/kernel", layout
            )
            for name, layout in [*((each, "heads_in") for each in QKV), ("out", "heads_out")]
        ),
        *(
            NameEntry(f"{_BV_ATTENTION}{name}/bias", f"layers_{{i}}/attention/{name}/bias", layout)
            for name, layout in [*((each, "heads_bias") for each in QKV), ("out", "same")]
        ),
        *(
            NameEntry(f"{_BV_BLOCK}{theirs}/{name}", f"layers_{{i}}/{ours}/{name}")
            for theirs, ours, names in (
                ("LayerNorm_0", "ln_1", ("scale", "bias")),
                ("LayerNorm_1", "ln_2", ("scale", "bias")),
                ("MlpBlock_0/Dense_0", "mlp/fc1", ("kernel", "bias")),
                ("MlpBlock_0/Dense_1", "mlp/fc2", ("kernel", "bias")),
            )
            for name in names
        ),
        NameEntry("Transformer/encoder_norm/scale", "ln_post/scale"),
        NameEntry("Transformer/encoder_norm/bias", "ln_post/bias"),
    ],
    unused=r"head/.*|pre_logits/.*",
)


def _stats(modules: Mapping[str, str]) -> NameTable:
    """Running averages of batch norms: their module -> our module."""
    return table(
        [
            NameEntry(f"{a}.running_{name}", f"{b}/{name}")
            for a, b in modules.items()
            for name in ("mean", "var")
        ]
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
RESNET = table(
    [NameEntry(f"{a}.weight", f"{b}/kernel", "conv") for a, b in _RESNET_MODULES["conv"].items()],
    norms(_RESNET_MODULES["norm"]),
    unused=r"fc\..*|.*\.num_batches_tracked",
)
RESNET_STATS = _stats(_RESNET_MODULES["norm"])

# Hugging Face's: stages and convolutions are numbered from 0, ours from 1.
_HF_RESNET_MODULES = {"embedder.embedder.": "{kind}1"} | {
    f"encoder.stages.{stage}.layers.{{j}}.{theirs}.": f"layer{stage + 1}_{{j}}/{ours}"
    for stage in range(8)
    for theirs, ours in [
        ("shortcut", "downsample_{kind}"),
        *((f"layer.{k}", f"{{kind}}{k + 1}") for k in range(3)),
    ]
}


def _hf_resnet(theirs: str, ours: str) -> dict[str, str]:
    """All modules of a kind, such as "convolution", which are "conv" here."""
    return {a + theirs: b.replace("{kind}", ours) for a, b in _HF_RESNET_MODULES.items()}


_HF_NORMS = _hf_resnet("normalization", "bn")
HF_RESNET = table(
    [
        NameEntry(f"{a}.weight", f"{b}/kernel", "conv")
        for a, b in _hf_resnet("convolution", "conv").items()
    ],
    norms(_HF_NORMS),
    unused=r"classifier\..*|.*\.num_batches_tracked",
)
HF_RESNET_STATS = _stats(_HF_NORMS)
