"""Lexical encoders from masked-language models, such as SPLADE."""

import dataclasses
from typing import Any

from big_retrieval.config import Lexical
from big_retrieval.errors import UserError
from big_retrieval.interop.source import CheckpointContents, CheckpointTower

PARAMETERS = ("dense/kernel", "dense/bias", "ln/scale", "ln/bias", "bias")


def as_lexical(
    source: CheckpointContents, activation: Any = "log1p_relu", top_k: int | None = None
) -> CheckpointContents:
    """Returns a checkpoint with its masked-language head as a lexical head.

    Args:
      source: the checkpoint; unchanged if its head is lexical already.
      activation: activation of the lexical head.
      top_k: number of largest terms that its gate keeps; None for all.

    Raises:
      UserError: the head is missing or incomplete.
    """
    for name, part in source.parts.items():
        if part.lexical is not None:
            return source
        if not part.masked:
            continue
        missing = [path for path in PARAMETERS if path not in part.masked]
        if missing:
            raise UserError(
                f"{source.origin}: the masked-language head lacks {', '.join(missing)}. Restore it."
            )
        unused = [name for name in source.unused if name not in part.masked_names]
        parts = source.parts | {name: _with_head(part, activation, top_k)}
        return dataclasses.replace(source, parts=parts, unused=unused)
    kinds = ", ".join(part.kind.name for part in source.parts.values())
    raise UserError(
        f"{source.origin} has no masked-language head, only {kinds}. Give a model that was saved "
        "with its head, such as BertForMaskedLM."
    )


def _with_head(part: CheckpointTower, activation: Any, top_k: int | None) -> CheckpointTower:
    masked, tower = part.kind.masked, part.tower
    assert masked is not None
    transform: Any = masked.activation or tower.activation
    head = Lexical(
        tied="kernel" not in part.masked,
        transform=transform,
        use_bias=True,
        activation=activation,
        epsilon=masked.epsilon or tower.epsilon,
        top_k=top_k,
        keep_input_terms=top_k is None,
    )
    tower = dataclasses.replace(tower, pool="none")
    return dataclasses.replace(
        part, tower=tower, head=part.masked, lexical=head, masked={}, masked_names=()
    )
