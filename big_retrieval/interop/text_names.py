"""Tables of text towers and of masked-language heads; see `names`.

The word table in front of a masked-language head's bias is the tower's own and not saved with the
head; where a file has it nevertheless, it is a copy or, rarely, a table of the head's own.
"""

from dataclasses import dataclass

from big_retrieval.interop.names import (
    NameEntry,
    NameTable,
    clip_blocks,
    hf_clip_blocks,
    linear,
    norms,
    table,
)

OPEN_CLIP_TEXT = table(
    [
        NameEntry("token_embedding.weight", "token_embedding"),
        NameEntry("positional_embedding", "position_embedding"),
    ],
    norms({"ln_final": "ln_final"}),
    clip_blocks(""),
    unused="attn_mask",
)

MTOB_TEXT = table(
    [
        NameEntry("token_embedding.weight", "token_embedding"),
        NameEntry("positional_embedding", "position_embedding"),
        NameEntry(
            "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
            "layers_{i}/attention/{qkv}/kernel",
            "qkv",
        ),
        NameEntry(
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

HF_CLIP_TEXT = table(
    [
        NameEntry("text_model.embeddings.token_embedding.weight", "token_embedding"),
        NameEntry("text_model.embeddings.position_embedding.weight", "position_embedding"),
    ],
    norms({"text_model.final_layer_norm": "ln_final"}),
    hf_clip_blocks("text_model"),
    unused=r".*\.position_ids",
)


def _bert(positions: str) -> NameTable:
    """BERT and its kin; RoBERTa differs in where its positions begin."""
    layer = "encoder.layer.{i}"
    return table(
        [
            NameEntry("embeddings.word_embeddings.weight", "token_embedding"),
            NameEntry("embeddings.position_embeddings.weight", "position_embedding", positions),
            NameEntry("embeddings.token_type_embeddings.weight", "token_type_embedding"),
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

# Hugging Face's encoders inside of open_clip, with the projection that open_clip puts behind them
INSIDE = "transformer."
OPEN_CLIP_SIGN = f"{INSIDE}encoder.layer.0.attention.self.query.weight"
OPEN_CLIP_BERT, OPEN_CLIP_ROBERTA = BERT.inside(INSIDE), ROBERTA.inside(INSIDE)
OPEN_CLIP_MLP = (
    NameEntry("proj.0.weight", "fc1/kernel", "linear"),
    NameEntry("proj.2.weight", "fc2/kernel", "linear"),
)

DISTILBERT = table(
    [
        NameEntry("embeddings.word_embeddings.weight", "token_embedding"),
        NameEntry("embeddings.position_embeddings.weight", "position_embedding"),
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

MPNET = table(
    [
        NameEntry("embeddings.word_embeddings.weight", "token_embedding"),
        NameEntry("embeddings.position_embeddings.weight", "position_embedding", "from_two"),
        NameEntry("encoder.relative_attention_bias.weight", "relative_bias"),
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


@dataclass(frozen=True)
class Masked:
    """The masked-language head of one architecture.

    Attributes:
      table: from whole names, without any prefix, to paths below a lexical head.
      activation: behind the dense layer; None: the tower's.
      epsilon: of the norm; None: the tower's.
    """

    table: NameTable
    activation: str | None = None
    epsilon: float | None = None


def _masked(dense: str, norm: str, bias: str, decoder: str, unused: str = "$.") -> NameTable:
    entries = [
        *linear({dense: "dense"}),
        *norms({norm: "ln"}),
        NameEntry(bias, "bias"),
        NameEntry(decoder, "kernel"),
    ]
    return NameTable(tuple(entries), unused)


BERT_MASKED = Masked(
    _masked(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        unused=r"cls\.seq_relationship\..*",
    )
)
ROBERTA_MASKED = Masked(  # MPNet's as well; GELU whatever the tower has
    _masked("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight"),
    activation="gelu",
)
DISTILBERT_MASKED = Masked(
    _masked(
        "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"
    ),
    epsilon=1e-12,
)
