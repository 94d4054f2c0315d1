"""The two nouns that the rooms exchange: batches go into models, representations come out.

Letters in shape comments, everywhere the same: B global batch, b rows on one process or device,
L positions, D width, V vocabulary columns, M class tokens (sub-spheres), N dimensions of one
sub-sphere, H heads, C block of a blocked loop.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax

Arrays = Mapping[str, Any]  # name -> jax.Array, numpy array or abstract array


@flax.struct.dataclass
class Batch:
    """What the step reads.

    Attributes:
      fields: field name -> its arrays. An image field has `pixels` uint8 [B, S, S, 3]; a text
        field has `ids` int32 [B, L] and `mask` bool [B, L], an array field `values` [B, ...]; see
        `Field.shapes`. An optional one has `present` bool [B], too: False where the record lacks
        it. Targets, which losses read and towers do not, are among them.
      valid: bool [B]; False marks the padding rows of a last, incomplete batch.
      document_id: int32 [B], the number of the row's document: equal for equal ones. The record
        that a row comes from, where `config.labels` names no column.
      query_id: int32 [B], the same of the query; None where no column says.
      weight: float32 [B], how much the row's pair counts; None: all alike.
      negatives: the document field that they are read like -> its arrays, with K further documents
        for each row: `ids` int32 [B, K, L] and `mask` bool [B, K, L]. None: there are none.
      negatives_valid: bool [B, K]; False where a row has fewer than K.
    """

    fields: Mapping[str, Arrays]
    valid: jax.Array
    document_id: jax.Array
    query_id: jax.Array | None = None
    weight: jax.Array | None = None
    negatives: Mapping[str, Arrays] | None = None
    negatives_valid: jax.Array | None = None


@flax.struct.dataclass
class Reps:
    """What losses, evaluators and indexes speak.

    Attributes:
      embeddings: field name -> embeddings [B, M, N] of the topology, in float32; [B, 1, V], dense,
        of lexical fields.
      words: lexical text field -> int32 [B, L], the columns of the text's own words, -1 for none.
      negatives: the same of the hard negatives that came with the rows, [B, K, ...] each.
      raw: the same as `embeddings`, in front of the topology's projection; only where a loss has a
        topology of its own.
      extra: loss -> what the module that it owns makes of the rows, arrays [B, ...].
    """

    embeddings: Mapping[str, jax.Array]
    words: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    negatives: "Reps | None" = None
    raw: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    extra: Mapping[str, Any] = flax.struct.field(default_factory=dict)
