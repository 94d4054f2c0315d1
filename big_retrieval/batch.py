"""The types that all packages exchange: `Batch`, the input of a model, and `Reps`, its output.

Letters in shape comments have the same meaning everywhere:

    B     rows of the global batch; b: rows on one process or device
    L     positions (tokens, patches)
    D, W  width of vectors
    V     vocabulary columns (terms)
    M     class tokens, or sub-spheres
    N     dimensions of one sub-sphere
    H     attention heads
    C     rows or columns of a tile
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax

Arrays = Mapping[str, Any]  # name -> jax.Array, numpy array or abstract array


@flax.struct.dataclass
class Batch:
    """One global batch, read by a model and the losses.

    Attributes:
      fields: field name -> arrays, see `Field.shapes`. An image field has `pixels` uint8
        [B, S, S, 3], a text field `ids` int32 [B, L] and `mask` bool [B, L], an array field
        `values` [B, ...]. An optional field has `present` bool [B], too: False if the record does
        not have it. Targets, which only losses read, are also fields.
      valid: bool [B]; False for the padding rows of a last, incomplete batch.
      document_id: int32 [B], equal for equal documents. Without a column in `config.labels`, it is
        the record index. If records share contents, it is an id of the document's content instead,
        and [B, K] for records with several documents: the drawn document first, padded with -1.
      query_id: int32 [B] or [B, K], equal for equal queries; None without a column or shared
        contents.
      weight: float32 [B], the weight of the row's pair; None for 1.
      negatives: K hard negatives per row: name of the document field whose tower reads them ->
        `ids` int32 [B, K, L] and `mask` bool [B, K, L]. None without hard negatives.
      negatives_valid: bool [B, K]; False if a row has fewer than K.
      negatives_id: int32 [B, K], ids like `document_id`, by content; None if unknown.
    """

    fields: Mapping[str, Arrays]
    valid: jax.Array
    document_id: jax.Array
    query_id: jax.Array | None = None
    weight: jax.Array | None = None
    negatives: Mapping[str, Arrays] | None = None
    negatives_valid: jax.Array | None = None
    negatives_id: jax.Array | None = None


@flax.struct.dataclass
class Reps:
    """Representations of a batch, for losses, evaluators and indexes.

    Attributes:
      embeddings: field name -> embeddings [B, M, N] of the topology, in float32; dense [B, 1, V] of
        lexical fields.
      bow: lexical text field -> int32 [B, L], the terms of the text's words, -1 for no term.
      negatives: representations of the hard negatives of the rows, arrays [B, K, ...].
      raw: embeddings before the topology projects them; only if a loss has another topology than
        the run.
      vectors: field name -> output of its tower, [B, M, W], or [B, L, W] of all positions; only for
        the modules of losses (`Loss.reads_vectors`).
      extra: name of a loss -> outputs of its module, arrays [B, ...].
    """

    embeddings: Mapping[str, jax.Array]
    bow: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    negatives: "Reps | None" = None
    raw: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    vectors: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    extra: Mapping[str, Any] = flax.struct.field(default_factory=dict)
