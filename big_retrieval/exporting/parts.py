"""The encoders of a trained model, for export."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from big_retrieval.config import Config
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.source import LOGIT_SCALE_PATH, Flat, below

# Modality -> keys that fields of one exported encoder must share.
ALIKE = {
    "text": ("length",),
    "image": ("size", "eval_resize", "eval_squash", "interpolation", "eval_margin", "mean", "std"),
}


@dataclass(frozen=True)
class Encoding:
    """One encoder: a tower and its head; arrays by their path below tower or head."""

    fields: Mapping[str, Any]  # name -> field of one modality
    tower_name: str
    tower: Any
    params: Flat  # without positions after the field's length
    stats: Flat  # running averages of batch norms
    head_params: Flat

    @property
    def name(self) -> str:
        """Name of the first field."""
        return next(iter(self.fields))

    @property
    def field(self) -> Any:
        """First field; the others have the same head and the same keys of `ALIKE`."""
        return self.fields[self.name]

    @property
    def head(self) -> Any:
        """Head of the fields."""
        return self.field.head

    @property
    def pool(self) -> str:
        """Pooling of positions; "none" if the head reads all of them."""
        pool = getattr(self.head, "pool", "tower")
        return getattr(self.tower, "pool", "") if pool == "tower" else pool

    @property
    def positions(self) -> int:
        """Rows of the position table."""
        return self.params["position_embedding"].shape[0]

    def prompts(self) -> dict[str, str]:
        """Returns field -> prefix of every text, without the fields that have no prefix."""
        prefixes = {name: getattr(field, "prefix", "") for name, field in self.fields.items()}
        return {name: prefix for name, prefix in prefixes.items() if prefix}

    def prefix_problems(self) -> Iterator[str]:
        """Yields a problem per prefix, for libraries that do not support prefixes."""
        for name, prefix in self.prompts().items():
            yield f"config.fields.{name}.prefix {prefix!r}"


@dataclass(frozen=True)
class Exported:
    """A model to export."""

    model: TrainedModel
    params: Flat  # path -> parameter or running average
    encodings: tuple[Encoding, ...]  # at least one
    logit_scale: np.ndarray | None  # logarithm of the logit scale, if the loss has one

    @property
    def config(self) -> Config:
        """Config of the run."""
        return self.model.config

    @property
    def tokenizer(self) -> FixedLengthTokenizer:
        """Tokenizer of the model's text fields."""
        return self.model.tokenizer

    @property
    def modalities(self) -> list[str]:
        """Sorted modalities of the encoders."""
        return sorted(encoding.field.modality for encoding in self.encodings)

    def encoding_of(self, modality: str) -> Encoding:
        """Returns the first encoder of a modality."""
        return next(encoding for encoding in self.encodings if encoding.field.modality == modality)

    def normalises(self) -> bool:
        """Returns True if dense embeddings have norm 1."""
        return self.config.topology != "inner"


def take_apart(model: TrainedModel, fields: Sequence[str] = (), *, apart: bool = False) -> Exported:
    """Returns the encoders of a model.

    Args:
      fields: fields to export; empty for all.
      apart: True if each field is its own encoder, with all positions of its tower.

    Raises:
      UserError: no such field, or fields that share a tower but are read differently.
    """
    unknown = sorted(set(fields) - set(model.config.encoded))
    if unknown:
        names = ", ".join(sorted(model.config.encoded))
        raise UserError(f"Unknown field: --field={unknown[0]}. The model has: {names}.")
    flat: Any = traverse_util.flatten_dict(jax.device_get(model.weights), sep="/")
    params = {name: np.asarray(array) for name, array in flat.items()}
    encodings: list[Encoding] = []
    for name, field in model.config.encoded.items():
        if fields and name not in fields:
            continue
        new = _encoding(model.config, params, name, field, all_positions=apart)
        same = next(
            (encoding for encoding in encodings if not apart and _same(encoding, new)), None
        )
        if same is None:
            encodings.append(new)
            continue
        _check_alike(same, name, field)
        merged = dataclasses.replace(same, fields={**same.fields, name: field})
        encodings[encodings.index(same)] = merged
    scales = [x.reshape(()) for name, x in params.items() if re.fullmatch(LOGIT_SCALE_PATH, name)]
    return Exported(model, params, tuple(encodings), scales[0] if scales else None)


def _encoding(
    config: Config, params: Flat, name: str, field: Any, *, all_positions: bool
) -> Encoding:
    tower, length = field.tower, 0 if all_positions else field.length
    arrays = below(params, f"{tower}/")
    if length and config.towers[tower].class_tokens == 1 and "position_embedding" in arrays:
        arrays["position_embedding"] = arrays["position_embedding"][:length]
    return Encoding(
        fields={name: field},
        tower_name=tower,
        tower=config.towers[tower],
        params=arrays,
        stats=below(params, f"batch_stats/{tower}/"),
        head_params=below(params, f"{field.shares_head or name}_head/"),
    )


def _same(one: Encoding, two: Encoding) -> bool:
    """Returns True if two fields have the same tower and equal heads."""
    if (one.tower_name, one.head) != (two.tower_name, two.head):
        return False
    a, b = one.head_params, two.head_params
    return a.keys() == b.keys() and all(np.array_equal(a[path], b[path]) for path in a)


def _check_alike(encoding: Encoding, name: str, field: Any) -> None:
    """Raises a UserError if a field is read differently from the encoder's first field."""
    for key in ALIKE.get(field.modality, ()):
        one, two = getattr(encoding.field, key), getattr(field, key)
        if one != two:
            raise UserError(
                f"Fields {encoding.name} and {name} share an encoder, but {key} is {one} and "
                f"{two}. Export one of them, --field={encoding.name}, or use --to=torch."
            )


def unlike(path: str, config: Any, choices: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of a config's part whose values a library does not support.

    Args:
      path: location of the part, such as `config.towers.text`.
      choices: key -> the allowed value, or a tuple of allowed values.
    """
    for key, value in choices.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if getattr(config, key) not in allowed:
            yield f"{path}.{key} {getattr(config, key)!r} (only {' or '.join(map(repr, allowed))})"
            if key == "type":  # a part of another type has other keys
                return
