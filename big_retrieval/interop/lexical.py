"""Lexical encoders from masked-language models, such as SPLADE."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from big_retrieval.config import Lexical
from big_retrieval.errors import UserError
from big_retrieval.interop import compatibility
from big_retrieval.interop.source import CheckpointContents, CheckpointTower, Flat

WHOLE = ("dense/kernel", "dense/bias", "ln/scale", "ln/bias", "bias")
# What the head computes before the activation; that and the pooling are the config's to choose.
SAME = ("tied", "transform", "use_bias", "epsilon")


def as_lexical(
    source: CheckpointContents, activation: Any = "log1p_relu", top_k: int | None = None
) -> CheckpointContents:
    """Returns a checkpoint with its masked-language head as a lexical head.

    Args:
      source: the checkpoint; unchanged if its head is lexical already.
      activation: activation of the lexical head.
      top_k: number of terms that its gate keeps, the largest ones; None for all.

    Raises:
      UserError: the head is missing or incomplete.
    """
    for name, part in source.parts.items():
        if part.lexical is not None:
            return source
        if not part.masked:
            continue
        missing = [path for path in WHOLE if path not in part.masked]
        if missing:
            raise UserError(
                f"{source.origin}: the masked-language head lacks {', '.join(missing)}; restore it."
            )
        left = [each for each in source.unused if each not in part.masked_names]
        parts = source.parts | {name: _with_head(part, activation, top_k)}
        return dataclasses.replace(source, parts=parts, unused=left)
    have = ", ".join(part.kind.name for part in source.parts.values())
    raise UserError(
        f"{source.origin} has no masked-language head to make a lexical one of (it has: {have}); "
        "give a model that was saved with its head, such as BertForMaskedLM."
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


def fit_head(
    path: str,
    tower: str,
    head: Lexical,
    part: CheckpointTower,
    wanted: Mapping[str, tuple[int, ...]],
    origin: str,
) -> Flat:
    """Returns the parameters of a checkpoint's lexical head for a configured one.

    Args:
      path: location of the field in the config, such as config.fields.text.
      tower: name of its tower.
      wanted: path below the head -> shape, of the model.

    Raises:
      UserError: they compute different things, or shapes differ.
    """
    keys = [key for key in SAME if getattr(head, key) != getattr(part.lexical, key)]
    if keys:
        flags = " ".join(f"--{path}.head.{key}={getattr(part.lexical, key)}" for key in keys)
        have = ", ".join(f"{key} {getattr(head, key)}" for key in keys)
        raise UserError(
            f"{path}.head is not the masked-language head of {origin}: it has {have}; give "
            f"{flags}, or let it start anew with --config.init.{tower}.head=False."
        )
    compatibility.same_names(origin, part.head, wanted)
    return part.head
