"""Names of masked-language heads: dense layer, activation, layer norm, word table, bias.

The table in front of the bias is the tower's own and not saved with the head; where a file has it
nevertheless, it is a copy or, rarely, a table of the head's own.
"""

from dataclasses import dataclass

from big_retrieval.interop.names import NameEntry, NameTable, linear, norms


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


def _table(dense: str, norm: str, bias: str, decoder: str, unused: str = "$.") -> NameTable:
    entries = [
        *linear({dense: "dense"}),
        *norms({norm: "ln"}),
        NameEntry(bias, "bias"),
        NameEntry(decoder, "kernel"),
    ]
    return NameTable(tuple(entries), unused)


BERT = Masked(
    _table(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        unused=r"cls\.seq_relationship\..*",
    )
)
ROBERTA = Masked(  # MPNet's as well; GELU whatever the tower has
    _table("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight"),
    activation="gelu",
)
DISTILBERT = Masked(
    _table("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"),
    epsilon=1e-12,
)
