"""Tables of vision towers; see `names`."""

from big_retrieval.interop.names import CLIP_BLOCKS, HF_CLIP_BLOCKS, name_table

OPEN_CLIP_IMAGE = name_table("""
    class_embedding       class_embedding         row
    positional_embedding  position_embedding
    conv1.weight          patch_embedding/kernel  patches
    ln_pre                ln_pre                  Norm
    ln_post               ln_post                 Norm
""", CLIP_BLOCKS).inside("visual.")  # fmt: skip

HF_CLIP_IMAGE = name_table("""
    embeddings.class_embedding            class_embedding         row
    embeddings.position_embedding.weight  position_embedding
    embeddings.patch_embedding.weight     patch_embedding/kernel  patches
    pre_layrnorm                          ln_pre                  Norm
    post_layernorm                        ln_post                 Norm
""", HF_CLIP_BLOCKS, unused=r".*\.position_ids").inside("vision_model.")  # fmt: skip

HF_VIT = name_table("""
    embeddings.cls_token                               class_embedding             batch
    embeddings.position_embeddings                     position_embedding          batch
    embeddings.patch_embeddings.projection.weight      patch_embedding/kernel      patches
    embeddings.patch_embeddings.projection.bias        patch_embedding/bias
    encoder.layer.{i}.attention.attention.query        layers_{i}/attention/query  Linear
    encoder.layer.{i}.attention.attention.key          layers_{i}/attention/key    Linear
    encoder.layer.{i}.attention.attention.value        layers_{i}/attention/value  Linear
    encoder.layer.{i}.attention.output.dense           layers_{i}/attention/out    Linear
    encoder.layer.{i}.intermediate.dense               layers_{i}/mlp/fc1          Linear
    encoder.layer.{i}.output.dense                     layers_{i}/mlp/fc2          Linear
    encoder.layer.{i}.layernorm_before                 layers_{i}/ln_1             Norm
    encoder.layer.{i}.layernorm_after                  layers_{i}/ln_2             Norm
    layernorm                                          ln_post                     Norm
""", unused=r"pooler\..*|classifier\..*|embeddings\.mask_token")  # fmt: skip

TIMM_VIT = name_table("""
    cls_token                   class_embedding                    batch
    pos_embed                   position_embedding                 batch
    patch_embed.proj.weight     patch_embedding/kernel             patches
    patch_embed.proj.bias       patch_embedding/bias
    blocks.{i}.attn.qkv.weight  layers_{i}/attention/{qkv}/kernel  qkv
    blocks.{i}.attn.qkv.bias    layers_{i}/attention/{qkv}/bias    qkv_bias
    blocks.{i}.attn.proj        layers_{i}/attention/out           Linear
    blocks.{i}.mlp.fc1          layers_{i}/mlp/fc1                 Linear
    blocks.{i}.mlp.fc2          layers_{i}/mlp/fc2                 Linear
    blocks.{i}.norm1            layers_{i}/ln_1                    Norm
    blocks.{i}.norm2            layers_{i}/ln_2                    Norm
    norm                        ln_post                            Norm
    norm_pre                    ln_pre                             Norm
""", unused=r"head\..*")  # fmt: skip

_BIG_VISION_BLOCK = name_table("""
    MultiHeadDotProductAttention_0/query/kernel  layers_{i}/attention/query/kernel  heads_in
    MultiHeadDotProductAttention_0/key/kernel    layers_{i}/attention/key/kernel    heads_in
    MultiHeadDotProductAttention_0/value/kernel  layers_{i}/attention/value/kernel  heads_in
    MultiHeadDotProductAttention_0/out/kernel    layers_{i}/attention/out/kernel    heads_out
    MultiHeadDotProductAttention_0/query/bias    layers_{i}/attention/query/bias    heads_bias
    MultiHeadDotProductAttention_0/key/bias      layers_{i}/attention/key/bias      heads_bias
    MultiHeadDotProductAttention_0/value/bias    layers_{i}/attention/value/bias    heads_bias
    MultiHeadDotProductAttention_0/out/bias      layers_{i}/attention/out/bias
    LayerNorm_0/scale                            layers_{i}/ln_1/scale
    LayerNorm_0/bias                             layers_{i}/ln_1/bias
    LayerNorm_1/scale                            layers_{i}/ln_2/scale
    LayerNorm_1/bias                             layers_{i}/ln_2/bias
    MlpBlock_0/Dense_0/kernel                    layers_{i}/mlp/fc1/kernel
    MlpBlock_0/Dense_0/bias                      layers_{i}/mlp/fc1/bias
    MlpBlock_0/Dense_1/kernel                    layers_{i}/mlp/fc2/kernel
    MlpBlock_0/Dense_1/bias                      layers_{i}/mlp/fc2/bias
""").inside("Transformer/encoderblock_{i}/")

BIG_VISION = name_table("""
    cls                             class_embedding         batch
    pos_embedding                   position_embedding      batch
    embedding/kernel                patch_embedding/kernel  flat_patches
    embedding/bias                  patch_embedding/bias
    Transformer/encoder_norm/scale  ln_post/scale
    Transformer/encoder_norm/bias   ln_post/bias
""", _BIG_VISION_BLOCK, unused=r"head/.*|pre_logits/.*")  # fmt: skip

RESNET = name_table("""
    conv1.weight                      conv1/kernel                       conv
    layer{i}.{j}.conv{k}.weight       layer{i}_{j}/conv{k}/kernel        conv
    layer{i}.{j}.downsample.0.weight  layer{i}_{j}/downsample_conv/kernel  conv
    bn1                               bn1                                Norm
    layer{i}.{j}.bn{k}                layer{i}_{j}/bn{k}                 Norm
    layer{i}.{j}.downsample.1         layer{i}_{j}/downsample_bn         Norm
""", unused=r"fc\..*|.*\.num_batches_tracked")  # fmt: skip
RESNET_STATS = name_table("""
    bn1                        bn1                         Averages
    layer{i}.{j}.bn{k}         layer{i}_{j}/bn{k}          Averages
    layer{i}.{j}.downsample.1  layer{i}_{j}/downsample_bn  Averages
""")


def _hf_resnet(module: str, path: str, layout: str) -> str:
    """Returns the lines of all modules; transformers counts stages from 0, paths from 1."""
    end = ".weight" if layout == "conv" else ""
    kernel = "/kernel" if layout == "conv" else ""
    names = [f"embedder.embedder.{module}{end} {path}1{kernel} {layout}"]
    for stage in range(8):
        block, ours = f"encoder.stages.{stage}.layers.{{j}}", f"layer{stage + 1}_{{j}}"
        names.append(f"{block}.shortcut.{module}{end} {ours}/downsample_{path}{kernel} {layout}")
        names += [
            f"{block}.layer.{k}.{module}{end} {ours}/{path}{k + 1}{kernel} {layout}"
            for k in range(3)
        ]
    return "\n".join(names)


HF_RESNET = name_table(
    _hf_resnet("convolution", "conv", "conv"),
    name_table(_hf_resnet("normalization", "bn", "Norm")),
    unused=r"classifier\..*|.*\.num_batches_tracked",
)
HF_RESNET_STATS = name_table(_hf_resnet("normalization", "bn", "Averages"))
