"""Tables of text towers and of masked-language heads; see `names`.

A masked-language head uses the tower's word table. If it has its own table, this is usually a copy.
"""

from dataclasses import dataclass

from big_retrieval.interop.names import (
    CLIP_BLOCKS,
    HF_CLIP_BLOCKS,
    NameEntry,
    NameTable,
    name_table,
)

OPEN_CLIP_TEXT = name_table("""
    token_embedding.weight  token_embedding
    positional_embedding    position_embedding
    ln_final                ln_final            Norm
""", CLIP_BLOCKS, unused="attn_mask")  # fmt: skip

_MTOB_BLOCK = name_table("""
    self_attn.in_proj_weight  layers_{i}/attention/{qkv}/kernel  qkv
    self_attn.in_proj_bias    layers_{i}/attention/{qkv}/bias    qkv_bias
    self_attn.out_proj        layers_{i}/attention/out           Linear
    linear1                   layers_{i}/mlp/fc1                 Linear
    linear2                   layers_{i}/mlp/fc2                 Linear
    norm1                     layers_{i}/ln_1                    Norm
    norm2                     layers_{i}/ln_2                    Norm
""").inside("transformer.encoder.layers.{i}.")
MTOB_TEXT = name_table("""
    token_embedding.weight  token_embedding
    positional_embedding    position_embedding
    ln_embedding            ln_embedding        Norm
    ln_final                ln_final            Norm
""", _MTOB_BLOCK)  # fmt: skip

HF_CLIP_TEXT = name_table("""
    embeddings.token_embedding.weight     token_embedding
    embeddings.position_embedding.weight  position_embedding
    final_layer_norm                      ln_final            Norm
""", HF_CLIP_BLOCKS, unused=r".*\.position_ids").inside("text_model.")  # fmt: skip

_BERT_LAYERS = name_table("""
    embeddings.word_embeddings.weight             token_embedding
    embeddings.token_type_embeddings.weight       token_type_embedding
    embeddings.LayerNorm                          ln_embedding                Norm
    encoder.layer.{i}.attention.self.query        layers_{i}/attention/query  Linear
    encoder.layer.{i}.attention.self.key          layers_{i}/attention/key    Linear
    encoder.layer.{i}.attention.self.value        layers_{i}/attention/value  Linear
    encoder.layer.{i}.attention.output.dense      layers_{i}/attention/out    Linear
    encoder.layer.{i}.intermediate.dense          layers_{i}/mlp/fc1          Linear
    encoder.layer.{i}.output.dense                layers_{i}/mlp/fc2          Linear
    encoder.layer.{i}.attention.output.LayerNorm  layers_{i}/ln_1             Norm
    encoder.layer.{i}.output.LayerNorm            layers_{i}/ln_2             Norm
""")
_POSITIONS = "embeddings.position_embeddings.weight position_embedding"
_UNUSED = r"pooler\..*|embeddings\.(position_ids|token_type_ids)"
BERT = name_table(_POSITIONS, _BERT_LAYERS, unused=_UNUSED)
ROBERTA = name_table(f"{_POSITIONS} from_two", _BERT_LAYERS, unused=_UNUSED)

# Hugging Face's encoders inside of open_clip, followed by open_clip's projection
INSIDE = "transformer."
OPEN_CLIP_SIGN = f"{INSIDE}encoder.layer.0.attention.self.query.weight"
OPEN_CLIP_BERT, OPEN_CLIP_ROBERTA = BERT.inside(INSIDE), ROBERTA.inside(INSIDE)
OPEN_CLIP_MLP = (
    NameEntry("proj.0.weight", "fc1/kernel", "linear"),
    NameEntry("proj.2.weight", "fc2/kernel", "linear"),
)

DISTILBERT = name_table("""
    embeddings.word_embeddings.weight        token_embedding
    embeddings.position_embeddings.weight    position_embedding
    embeddings.LayerNorm                     ln_embedding                Norm
    transformer.layer.{i}.attention.q_lin    layers_{i}/attention/query  Linear
    transformer.layer.{i}.attention.k_lin    layers_{i}/attention/key    Linear
    transformer.layer.{i}.attention.v_lin    layers_{i}/attention/value  Linear
    transformer.layer.{i}.attention.out_lin  layers_{i}/attention/out    Linear
    transformer.layer.{i}.ffn.lin1           layers_{i}/mlp/fc1          Linear
    transformer.layer.{i}.ffn.lin2           layers_{i}/mlp/fc2          Linear
    transformer.layer.{i}.sa_layer_norm      layers_{i}/ln_1             Norm
    transformer.layer.{i}.output_layer_norm  layers_{i}/ln_2             Norm
""")

MPNET = name_table("""
    embeddings.word_embeddings.weight       token_embedding
    embeddings.position_embeddings.weight   position_embedding          from_two
    encoder.relative_attention_bias.weight  relative_bias
    embeddings.LayerNorm                    ln_embedding                Norm
    encoder.layer.{i}.attention.attn.q      layers_{i}/attention/query  Linear
    encoder.layer.{i}.attention.attn.k      layers_{i}/attention/key    Linear
    encoder.layer.{i}.attention.attn.v      layers_{i}/attention/value  Linear
    encoder.layer.{i}.attention.attn.o      layers_{i}/attention/out    Linear
    encoder.layer.{i}.intermediate.dense    layers_{i}/mlp/fc1          Linear
    encoder.layer.{i}.output.dense          layers_{i}/mlp/fc2          Linear
    encoder.layer.{i}.attention.LayerNorm   layers_{i}/ln_1             Norm
    encoder.layer.{i}.output.LayerNorm      layers_{i}/ln_2             Norm
""", unused=r"pooler\..*|embeddings\.position_ids")  # fmt: skip


@dataclass(frozen=True)
class Masked:
    """The masked-language head of one architecture.

    Attributes:
      table: names without any prefix -> paths below a lexical head.
      activation: activation after the dense layer; None for the tower's.
      epsilon: epsilon of the norm; None for the tower's.
    """

    table: NameTable
    activation: str | None = None
    epsilon: float | None = None


BERT_MASKED = Masked(name_table("""
    cls.predictions.transform.dense      dense   Linear
    cls.predictions.transform.LayerNorm  ln      Norm
    cls.predictions.bias                 bias
    cls.predictions.decoder.weight       kernel
""", unused=r"cls\.seq_relationship\..*"))  # fmt: skip
ROBERTA_MASKED = Masked(  # MPNet's as well; always with GELU
    name_table("""
        lm_head.dense           dense   Linear
        lm_head.layer_norm      ln      Norm
        lm_head.bias            bias
        lm_head.decoder.weight  kernel
    """),
    activation="gelu",
)
DISTILBERT_MASKED = Masked(
    name_table("""
        vocab_transform         dense   Linear
        vocab_layer_norm        ln      Norm
        vocab_projector.bias    bias
        vocab_projector.weight  kernel
    """),
    epsilon=1e-12,
)
