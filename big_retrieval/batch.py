"""The two types that all packages exchange: a `Batch` goes into a model, `Reps` come out.

Letters in shape comments mean the same everywhere: B global batch, b rows on one process or device,
L positions, D width, V vocabulary columns, M class tokens (sub-spheres), N dimensions of one
sub-sphere, H heads, C rows or columns of a tile.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax

Arrays = Mapping[str, Any]  # name -> jax.Array, numpy array or abstract array


@flax.struct.dataclass
class Batch:
    """One global batch: what a model and the losses read.

    Attributes:
      fields: field name -> its arrays. An image field has `pixels` uint8 [B, S, S, 3]; a text
        field has `ids` int32 [B, L] and `mask` bool [B, L], an array field `values` [B, ...]; see
        `Field.shapes`. An optional one has `present` bool [B], too: False where the record lacks
        it. Targets, which only losses read, are fields too.
      valid: bool [B]; False marks the padding rows of a last, incomplete batch.
      document_id: int32 [B], the number of the row's document: equal for equal documents. Where
        `config.labels` names no column, it is the number of the row's record, or where records
        share contents a number of what the document holds; then [B, K] of records with several
        documents, the drawn one first, filled up with -1.
      query_id: int32 [B] or [B, K], the number of the row's query; None where no column holds it
        and records share nothing.
      weight: float32 [B], the weight of the row's pair; None: all weigh 1.
      negatives: hard negatives, K further documents of each row. The document field whose tower
        reads them -> its arrays, `ids` int32 [B, K, L] and `mask` bool [B, K, L]. None: there
        are none.
      negatives_valid: bool [B, K]; False where a row has fewer than K.
      negatives_id: int32 [B, K], numbers like `document_id`, by what they hold; None: unknown.
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
    """The representations of a batch: what models give to losses, evaluators and indexes.

    Attributes:
      embeddings: field name -> embeddings [B, M, N] of the topology, in float32; [B, 1, V], dense,
        of lexical fields.
      bow: lexical text field -> int32 [B, L], the columns of the text's own words, -1 for none.
      negatives: representations of the hard negatives of the rows, arrays [B, K, ...].
      raw: the embeddings before the topology projects them; only where a loss has another
        topology than the run.
      vectors: field name -> what its tower gave, [B, M, W], or [B, L, W] of all positions; only of
        fields that the module of a loss asks for (`Loss.reads_vectors`), and only for the module.
      extra: name of a loss -> outputs of the module that the loss owns, arrays [B, ...].
    """

    embeddings: Mapping[str, jax.Array]
    bow: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    negatives: "Reps | None" = None
    raw: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    vectors: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    extra: Mapping[str, Any] = flax.struct.field(default_factory=dict)
